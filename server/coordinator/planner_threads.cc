#include "server/coordinator/planner_threads.h"

#include <algorithm>
#include <new>
#include <utility>

#include "common/base/error.h"

namespace stemma::server {

PlannerThreads::PlannerThreads(PlanFunction plan, Done done) : plan_(std::move(plan)), done_(std::move(done)) {
  for (Lane& lane : lanes_) lane.thread = std::thread([this, &lane] { Run(lane); });
}

void PlannerThreads::Add(PlanAction plan) {
  MutexLock lock(&mutex_);
  Lane& lane = lanes_[plan.request->header().validate_only() ? 1 : 0];
  lane.jobs.push_back({.plan = std::move(plan)});
}

void PlannerThreads::Cancel(PlanId id) {
  MutexLock lock(&mutex_);
  for (Lane& lane : lanes_) {
    const auto job = std::find_if(lane.jobs.begin(), lane.jobs.end(), [&](const Job& j) { return j.plan.id == id; });
    if (job == lane.jobs.end()) continue;
    *job->stopped = true;
    if (job != lane.jobs.begin() || !lane.busy) lane.jobs.erase(job);
  }
}

void PlannerThreads::Stop() {
  {
    MutexLock lock(&mutex_);
    stopped_ = true;
    for (Lane& lane : lanes_) {
      for (Job& job : lane.jobs) *job.stopped = true;
    }
  }
  for (Lane& lane : lanes_) {
    if (lane.thread.joinable()) lane.thread.join();
  }
}

bool PlannerThreads::Next(Lane& lane, Job& job) {
  MutexLock lock(&mutex_);
  mutex_.Await([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopped_ || !lane.jobs.empty(); });
  if (stopped_) return false;
  lane.busy = true;
  job = lane.jobs.front();
  return true;
}

void PlannerThreads::Run(Lane& lane) {
  Job job;
  while (Next(lane, job)) {
    auto plan = std::make_shared<absl::StatusOr<RequestPlan>>(Plan(job));
    {
      MutexLock lock(&mutex_);
      lane.busy = false;
      lane.jobs.pop_front();
    }
    done_({.id = job.plan.id, .plan = std::move(plan)});
    job = {};
  }
}

absl::StatusOr<RequestPlan> PlannerThreads::Plan(const Job& job) const {
  const PlanAction& plan = job.plan;
  try {  // of a request that is within the limits, on a machine that has less memory than they need
    return plan_(*plan.request, plan.config, plan.rates, [&job] { return job.stopped->load(); });
  } catch (const std::bad_alloc&) {
    return MakeError(
        Reason::kServerMemory,
        "the server has too little memory to plan this request: send a smaller one, or this one again later");
  }
}

}  // namespace stemma::server
