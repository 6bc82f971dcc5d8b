#include "server/coordinator/planner_threads.h"

#include <algorithm>
#include <new>
#include <utility>

#include "common/base/error.h"
#include "common/base/status_macros.h"
#include "glog/logging.h"

namespace stemma::server {

PlannerThreads::PlannerThreads(PlanFunction plan, Storage* storage, Done done)
    : plan_(std::move(plan)), storage_(storage), done_(std::move(done)) {
  for (Lane& lane : lanes_) lane.thread.emplace(kPlanningRequest, [this, &lane] { Run(lane); });
}

void PlannerThreads::Add(PlanAction plan) {
  MutexLock lock(&mutex_);
  Lane& lane = lanes_[plan.request->header().validate_only() ? 1 : 0];
  lane.jobs.push_back({.work = std::move(plan)});
}

void PlannerThreads::Add(LoadAction load) {
  MutexLock lock(&mutex_);
  lanes_[0].jobs.push_back({.work = std::move(load)});
}

void PlannerThreads::Cancel(PlanId id) {
  MutexLock lock(&mutex_);
  for (Lane& lane : lanes_) {
    const auto job = std::find_if(lane.jobs.begin(), lane.jobs.end(), [&](const Job& j) {
      return std::visit([](const auto& work) { return work.id; }, j.work) == id;
    });
    if (job == lane.jobs.end()) continue;
    *job->stopped = true;
    if (job != lane.jobs.begin() || !lane.busy) lane.jobs.erase(job);
  }
}

void PlannerThreads::Quit() {
  MutexLock lock(&mutex_);
  stopped_ = true;
  for (Lane& lane : lanes_) {
    for (Job& job : lane.jobs) *job.stopped = true;
  }
}

std::string PlannerThreads::StopBy(StopDeadline deadline) {
  Quit();
  for (Lane& lane : lanes_) {
    if (std::string goes_on = lane.thread->EndBy(deadline); !goes_on.empty()) return goes_on;
  }
  return "";
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
    Event done = std::visit([&](const auto& work) { return Do(work, *job.stopped, *lane.thread); }, job.work);
    {
      MutexLock lock(&mutex_);
      lane.busy = false;
      lane.jobs.pop_front();
    }
    done_(std::move(done));
    job = {};
  }
}

// A plan that was stopped in vain, or too late, has its file too: who hears of it removes that.
Event PlannerThreads::Do(const PlanAction& action, const std::atomic<bool>& stopped, WatchedThread& thread) const {
  thread.Doing(kPlanningRequest);
  PlannedEvent event = {.id = action.id, .plan = std::make_shared<absl::StatusOr<RequestPlan>>(Plan(action, stopped))};
  if (!action.writes_rows || !event.plan->ok() || storage_ == nullptr || stopped) return event;
  thread.Doing("keeping a request");
  if (absl::Status kept = Keep(action, event); !kept.ok()) *event.plan = std::move(kept);
  return event;
}

// A request that no file keeps has rows in the journal all the same.
absl::Status PlannerThreads::Keep(const PlanAction& action, PlannedEvent& event) const {
  if (action.spool_name.empty()) return storage_->CheckRoom();
  ASSIGN_OR_RETURN(event.spool, storage_->Keep(action.spool_name, *action.request, **event.plan, action.config.mesh()));
  return absl::OkStatus();
}

Event PlannerThreads::Do(const LoadAction& action, const std::atomic<bool>&, WatchedThread& thread) const {
  CHECK(storage_ != nullptr);
  thread.Doing("reading a request back");
  return LoadedEvent{.id = action.id,
                     .loaded = std::make_shared<absl::StatusOr<LoadedRequest>>(storage_->Load(action.file))};
}

absl::StatusOr<RequestPlan> PlannerThreads::Plan(const PlanAction& plan, const std::atomic<bool>& stopped) const {
  try {  // of a request that is within the limits, on a machine that has less memory than they need
    return plan_(*plan.request, plan.config, plan.rates, [&stopped] { return stopped.load(); });
  } catch (const std::bad_alloc&) {
    return MakeError(
        Reason::kServerMemory,
        "the server has too little memory to plan this request: send a smaller one, or this one again later");
  }
}

}  // namespace stemma::server
