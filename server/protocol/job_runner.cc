#include "server/protocol/job_runner.h"

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/dtype_names.h"
#include "glog/logging.h"
#include "server/planner/memory_division.h"
#include "server/protocol/answers.h"
#include "server/protocol/rank_parts.h"
#include "server/protocol/worker_messages.h"

namespace stemma::server {

void JobRunner::StartNext() {
  while (!p_.jobs.running().exists() && p_.gang.serves() && !membership_->draining()) {
    const std::optional<std::string> id = p_.jobs.queue().TakeNext();
    if (!id) return;
    if (UpdateRecord* record = p_.jobs.table().Find(*id)) {
      steps_->Start(*record);
      continue;
    }
    const CallJob* job = p_.jobs.queue().FindCallJob(*id);
    CHECK(job != nullptr) << *id;
    std::visit([&](const auto& work) { Start(*id, work); }, job->work);
  }
}

void JobRunner::Start(const std::string& id, const LogProbJob& job) {
  if (absl::Status status = p_.lineage.CheckExpected(job.request->header(), p_.lineage.step()); !status.ok()) {
    return p_.jobs.FinishCallJob(id, status);
  }
  if (const std::string problem = PlanProblem(job.plan.report, p_.options.model, p_.gang.config()); !problem.empty()) {
    return p_.jobs.FinishCallJob(id, PlanMisfit(problem));
  }
  const uint32_t num_ranks = p_.gang.num_ranks();
  p_.jobs.running().BeginCallJob(id, absl::StrCat("log-prob pass ", id), LogProbSeconds(job.plan, job.request->bytes),
                                 ResultCheck(job.request), num_ranks);
  const auto num_groups = static_cast<uint32_t>(job.request->groups.size());
  std::vector<std::vector<uint32_t>> groups = PayloadGroupsOfRanks(job.plan.plan, num_groups, num_ranks);
  std::vector<v1::StepPlan> plans = PlansOfRanks(job.plan.step(0), num_ranks);
  for (uint32_t rank = 0; rank < num_ranks; ++rank) {
    const SessionId session = p_.gang.worker(rank).session;
    p_.out.Add(SendPayloadAction{session, id, job.request, std::move(groups[rank])});
    internal::v1::LogProb message;
    message.set_id(id);
    *message.mutable_header() = job.request->log_prob;
    *message.mutable_plan() = std::move(plans[rank]);
    p_.out.Send(session, std::move(message));
  }
}

void JobRunner::Start(const std::string& id, const ExportJob& job) {
  internal::v1::Export message;
  message.set_id(id);
  message.set_name(job.request.name());
  if (job.request.has_dtype()) message.set_dtype(LongDtypeName(job.request.dtype()));
  p_.jobs.running().BeginCallJob(id, absl::StrCat("export ", message.name()), ExportSeconds(p_.options.model),
                                 std::nullopt, p_.gang.num_ranks());
  for (const Gang::Worker& worker : p_.gang.workers()) p_.out.Send(worker.session, message);
}

void JobRunner::OnResultChunk(uint32_t rank, const internal::v1::ResultChunk& chunk) {
  RunningJob& running = p_.jobs.running();
  if (!running.Is(chunk.id())) {
    return steps_->Ignore(absl::StrCat("results of ", WorkerText(chunk.id()), ", which does not run"));
  }
  if (absl::Status expected = running.AddResult(chunk.group()); !expected.ok()) {
    return membership_->Breach(p_.gang.worker(rank).session, expected);
  }
  auto group = std::make_shared<v1::GroupResult>(chunk.group());
  group->set_lineage(p_.lineage.name());
  if (running.is_update()) {
    p_.jobs.RunningUpdate().results.push_back(std::move(group));
  } else {
    p_.out.Add(ChunkAction{p_.jobs.queue().FindCallJob(chunk.id())->call, std::move(group)});
  }
}

const CallJob* JobRunner::FindRunning(uint32_t rank, const std::string& id, bool is_export) {
  const CallJob* job = p_.jobs.queue().FindCallJob(id);
  if (!p_.jobs.running().Is(id) || job == nullptr || !p_.jobs.running().AwaitsDone(rank)) {
    steps_->Ignore(absl::StrCat("the end of ", WorkerText(id), ", which does not run"));
    return nullptr;
  }
  if (job->is_export() == is_export) return job;
  membership_->Breach(p_.gang.worker(rank).session, absl::InvalidArgumentError("the end of a job of another kind"));
  return nullptr;
}

// The first failure ends the pass: the other ranks are told to stop, and what they still send is ignored.
void JobRunner::OnLogProbDone(uint32_t rank, const internal::v1::LogProbDone& done) {
  if (FindRunning(rank, done.id(), /*is_export=*/false) == nullptr) return;
  const absl::Status failure = done.has_failure() ? FailureOfWorker(done.failure()) : absl::OkStatus();
  const bool all = p_.jobs.running().AddDone(rank, failure, 0);
  if (!all && failure.ok()) return;
  if (!all) p_.jobs.AbortRunning();
  p_.jobs.FinishCallJob(done.id(), failure);
}

void JobRunner::OnExportDone(uint32_t rank, const internal::v1::ExportDone& done) {
  const CallJob* job = FindRunning(rank, done.id(), /*is_export=*/true);
  if (job == nullptr) return;
  RunningJob& running = p_.jobs.running();
  const absl::Status of_rank = done.has_failure() ? FailureOfWorker(done.failure()) : absl::OkStatus();
  if (!running.AddDone(rank, of_rank, done.bytes())) return;
  const std::string path = ExportPath(p_.options.data_directory, std::get<ExportJob>(job->work).request.name());
  if (const absl::Status failure = running.failure(); !failure.ok()) {
    return p_.jobs.FinishCallJob(done.id(), absl::IsAlreadyExists(failure) ? ExportExistsError(path) : failure);
  }
  v1::ExportWeightsResponse response;
  response.set_path(path);
  response.set_step(p_.lineage.step());
  response.set_weight_version(p_.lineage.weight_version());
  response.set_lineage(p_.lineage.name());
  response.set_bytes(running.bytes());
  p_.jobs.FinishCallJob(done.id(), std::move(response));
}

}  // namespace stemma::server
