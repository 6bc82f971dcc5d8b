#include "server/protocol/job_runner.h"

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/admission/log_prob_sources.h"
#include "common/admission/violations.h"
#include "common/base/dtype_names.h"
#include "common/base/error.h"
#include "common/base/status_macros.h"
#include "glog/logging.h"
#include "server/planner/memory_division.h"
#include "server/protocol/answers.h"
#include "server/protocol/checkpoint_rules.h"
#include "server/protocol/rank_parts.h"
#include "server/protocol/step_prepares.h"
#include "server/protocol/worker_messages.h"

namespace stemma::server {
namespace {

absl::Status NothingToVerify() {
  Violations violations;
  violations.Add("groups",
                 "have no rollout with a gradient, and nothing to compare: send some with an advantage other "
                 "than 0");
  return violations.ToStatus();
}

}  // namespace

void JobRunner::StartNext() {
  while (!p_.jobs.running().exists() && p_.gang.serves() && !membership_->draining() && p_.lineage.unusable().empty() &&
         StartOne()) {
  }
}

bool JobRunner::StartOne() {
  if (const internal::v1::KeptRequest* kept = p_.history.FindBehind(p_.lineage.weights_step()))
    return StartAgain(*kept);
  saves_->AddWhenDue();
  const std::optional<std::string> id = p_.jobs.queue().TakeNext();
  if (!id) return false;
  if (UpdateRecord* record = p_.jobs.table().Find(*id)) return StartUpdate(*record);
  CallJob* job = p_.jobs.queue().FindCallJob(*id);
  CHECK(job != nullptr) << *id;
  if (std::holds_alternative<SaveJob>(job->work) && !saves_->can_save()) {
    p_.jobs.queue().PutBack(*id);  // and what comes after it waits for the save that runs, as its client was told
    return false;
  }
  std::visit([&](auto& work) { Start(*id, work); }, job->work);
  return true;
}

bool JobRunner::StartAgain(const internal::v1::KeptRequest& kept) {
  const std::string& id = kept.request_id();
  std::optional<LoadedRequest> loaded = TakeKept(kept);
  if (!loaded) return false;
  const absl::Status readable = CheckReadable(p_.history.state(), CheckpointsReadBy(loaded->request->update));
  if (!readable.ok()) return CannotComputeAgain(id, readable);
  steps_->Start(p_.jobs.HoldAgain(id, *std::move(loaded)));
  return true;
}

// What was decided needs what is gone: an operator has to look.
bool JobRunner::CannotComputeAgain(const std::string& id, const absl::Status& why) {
  membership_->Stop(MakeError(Reason::kCorruptCheckpoint,
                              absl::StrCat("request ", id, ", whose steps were decided, cannot be computed again: ",
                                           std::string(why.message()))));
  return false;
}

bool JobRunner::StartUpdate(UpdateRecord& record) {
  const internal::v1::KeptRequest* kept = FindKept(p_.history.state(), record.id);
  const bool here = record.request != nullptr &&
                    (kept == nullptr || PlanProblem(record.plan.report, p_.options.model, p_.gang.config()).empty());
  if (!here) {
    CHECK(kept != nullptr) << record.id << " is open and not kept";
    const std::string id = record.id;
    std::optional<LoadedRequest> loaded = TakeKept(*kept);
    if (!loaded) return !PutBackUnlessEnded(id);
    record.request = std::move(loaded->request);
    record.plan = std::move(loaded->plan);
    *record.result.mutable_plan() = record.plan.report;  // for these workers; and what the journal has no room for
  }
  const absl::Status readable = CheckReadable(p_.history.state(), CheckpointsReadBy(*record.request));
  if (!readable.ok() && p_.history.FindDecision(record.id, 0) != nullptr) {
    p_.jobs.queue().PutBack(record.id);
    return CannotComputeAgain(record.id, readable);
  }
  if (!readable.ok()) {
    p_.jobs.FinishUpdate(record, v1::FAILED, readable);
  } else {
    steps_->Start(record);
  }
  return true;
}

// Looks the record up again: one that has ended may be gone, for only so many of those are kept.
bool JobRunner::PutBackUnlessEnded(const std::string& id) {
  const UpdateRecord* record = p_.jobs.table().Find(id);
  if (record == nullptr || record->final()) return false;
  p_.jobs.queue().PutBack(id);
  return true;
}

std::optional<LoadedRequest> JobRunner::TakeKept(const internal::v1::KeptRequest& kept) {
  std::optional<absl::StatusOr<LoadedRequest>> taken =
      reload_.Take(kept.spool(), p_.options.model, {p_.gang.config(), p_.calibration.rates()});
  if (!taken) return std::nullopt;
  if (taken->ok()) return **std::move(taken);
  const absl::Status why = taken->status();
  const std::string text = absl::StrCat("request ", kept.request_id(), ", which is to be computed, cannot be ");
  if (absl::IsFailedPrecondition(why)) {  // its file is whole
    membership_->Stop(MakeError(
        Reason::kCorruptSpool,
        absl::StrCat(text, "planned for these workers: ", std::string(why.message()),
                     "; start the version, or on the mesh, that began it, or go on without its steps: --durability "
                     "rewind")));
  } else if (!absl::IsResourceExhausted(why)) {
    membership_->Stop(MakeError(Reason::kCorruptSpool, absl::StrCat(text, "read back: ", std::string(why.message()))));
  } else if (kept.steps().empty()) {  // it was read, and a plan for these workers finds no room
    UpdateRecord& record = *p_.jobs.table().Find(kept.request_id());
    record.resumable = true;
    p_.jobs.FinishUpdate(record, v1::FAILED, why);
  } else {  // some of its steps are in the weights: other workers may have the memory that these lack
    steps_->FailAgain(absl::StrCat(text, "planned for these workers: ", std::string(why.message())));
  }
  return std::nullopt;
}

absl::Status JobRunner::StartProblem(const TrainingRequest& request, const RequestPlan& plan) const {
  RETURN_IF_ERROR(p_.lineage.CheckExpected(request.header(), p_.lineage.step()));
  const std::string problem = PlanProblem(plan.report, p_.options.model, p_.gang.config());
  if (!problem.empty()) return PlanMisfit(problem);
  return CheckReadable(p_.history.state(), CheckpointsReadBy(request));
}

void JobRunner::Start(const std::string& id, const LogProbJob& job) {
  if (absl::Status status = StartProblem(*job.request, job.plan); !status.ok()) {
    return p_.jobs.FinishCallJob(id, status);
  }
  const uint32_t num_ranks = p_.gang.num_ranks();
  p_.jobs.running().BeginCallJob(id, absl::StrCat("log-prob pass ", id), LogProbSeconds(job.plan, job.request->bytes),
                                 ResultCheck(job.request), num_ranks);
  const auto num_groups = static_cast<uint32_t>(job.request->groups.size());
  const v1::Mesh& mesh = p_.gang.mesh();
  std::vector<std::vector<uint32_t>> groups =
      ForRanks(PayloadGroupsOfRanks(job.plan.plan, num_groups, DpSize(mesh)), mesh);
  std::vector<v1::StepPlan> plans = ForRanks(PlansOfRanks(job.plan.step(0), DpSize(mesh)), mesh);
  for (uint32_t rank = 0; rank < num_ranks; ++rank) {
    const SessionId session = p_.gang.worker(rank).session;
    p_.out.Add(SendPayloadAction{session, id, job.request, std::move(groups[rank])});
    internal::v1::LogProb message;
    message.set_id(id);
    *message.mutable_header() = job.request->log_prob;
    *message.mutable_plan() = std::move(plans[rank]);
    *message.mutable_weights() =
        PassWeightsOf(p_.history.state(), job.request->log_prob.weights(), p_.gang.config().dtype());
    p_.out.Send(session, std::move(message));
  }
}

void JobRunner::Start(const std::string& id, VerifyJob& job) {
  const RequestPlan &plan = *job.plan, &dense = *job.plan->dense;
  absl::Status status = StartProblem(*job.request, plan);
  if (status.ok()) status = StartProblem(*job.request, dense);
  if (status.ok() && plan.step(0).clusters().empty()) status = NothingToVerify();
  if (!status.ok()) return p_.jobs.FinishCallJob(id, status);
  const uint32_t num_ranks = p_.gang.num_ranks();
  const v1::Mesh& mesh = p_.gang.mesh();
  p_.jobs.running().BeginCallJob(id, absl::StrCat("verification ", id), VerifySeconds(plan, job.request->bytes),
                                 std::nullopt, num_ranks);
  job.answers = std::make_shared<Verification>(job.request, job.plan, p_.options.model, mesh);
  const auto num_groups = static_cast<uint32_t>(job.request->groups.size());
  std::vector<std::vector<uint32_t>> groups = PayloadGroupsOfRuns(plan, num_groups, mesh);
  internal::v1::StepKey key;
  key.set_step(p_.lineage.weights_step() + 1);
  std::vector<internal::v1::Prepare> reuse = PreparesOf(p_, key, *job.request, plan);
  std::vector<internal::v1::Prepare> of_dense = PreparesOf(p_, key, *job.request, dense);
  for (uint32_t rank = 0; rank < num_ranks; ++rank) {
    const SessionId session = p_.gang.worker(rank).session;
    p_.out.Add(SendPayloadAction{session, id, job.request, std::move(groups[rank])});
    p_.out.Send(session, MakeVerify(id, std::move(reuse[rank]), std::move(of_dense[rank])));
  }
}

void JobRunner::Start(const std::string& id, const ExportJob& job) {
  internal::v1::Export message;
  message.set_id(id);
  message.set_name(job.request.name());
  if (job.request.has_dtype()) message.set_dtype(LongDtypeName(job.request.dtype()));
  p_.jobs.running().BeginCallJob(id, absl::StrCat("export ", message.name()), ExportSeconds(p_.options.model),
                                 std::nullopt, p_.gang.num_ranks());
  message.set_folder(TemporaryFolderOf(absl::StrCat("export-", p_.options.epoch, "-", next_folder_++)));
  p_.out.Add(RemoveUnfinishedExportsAction{});
  p_.out.Add(MakeExportFolderAction{id, message.folder()});
  // Workers may be lost behind the rename, before they say that it is whole. What then has the name is this one, if
  // nothing had it before.
  if (job.name_is_free) NoteWritten(job.request);
  for (const Gang::Worker& worker : p_.gang.workers()) p_.out.Send(worker.session, message);
}

void JobRunner::OnResultChunk(uint32_t rank, const internal::v1::ResultChunk& chunk) {
  RunningJob& running = p_.jobs.running();
  if (!running.Is(chunk.id())) {
    return steps_->Ignore(absl::StrCat("results of ", WorkerText(chunk.id()), ", which does not run"));
  }
  const CallJob* job = p_.jobs.queue().FindCallJob(chunk.id());
  const auto* verified = job == nullptr ? nullptr : std::get_if<VerifyJob>(&job->work);
  const absl::Status expected =
      verified == nullptr ? running.AddResult(chunk.group()) : verified->answers->AddResult(chunk);
  if (!expected.ok()) return membership_->Breach(p_.gang.worker(rank).session, expected);
  if (verified != nullptr) return;
  auto group = std::make_shared<v1::GroupResult>(chunk.group());
  group->set_lineage(p_.lineage.name());
  if (running.is_update()) {
    p_.jobs.RunningUpdate().results.push_back(std::move(group));
  } else {
    p_.out.Add(ChunkAction{job->call, std::move(group)});
  }
}

template <typename Work>
CallJob* JobRunner::FindRunning(uint32_t rank, const std::string& id) {
  CallJob* job = p_.jobs.queue().FindCallJob(id);
  if (!p_.jobs.running().Is(id) || job == nullptr || !p_.jobs.running().AwaitsDone(rank)) {
    steps_->Ignore(absl::StrCat("the end of ", WorkerText(id), ", which does not run"));
    return nullptr;
  }
  if (std::holds_alternative<Work>(job->work)) return job;
  membership_->Breach(p_.gang.worker(rank).session, absl::InvalidArgumentError("the end of a job of another kind"));
  return nullptr;
}

bool JobRunner::IsOver(uint32_t rank, const absl::Status& failure) {
  const bool all = p_.jobs.running().AddDone(rank, failure, 0);
  if (!all && failure.ok()) return false;
  if (!all) p_.jobs.AbortRunning();
  return true;
}

// Results that the other ranks still send after a failure are ignored.
void JobRunner::OnLogProbDone(uint32_t rank, const internal::v1::LogProbDone& done) {
  if (p_.jobs.running().TakeStopped(rank, done.id())) return;
  if (FindRunning<LogProbJob>(rank, done.id()) == nullptr) return;
  const absl::Status failure = done.has_failure() ? FailureOfWorker(done.failure()) : absl::OkStatus();
  if (!IsOver(rank, failure)) return;
  p_.jobs.FinishCallJob(done.id(), failure.ok() ? p_.jobs.running().CheckAllCame() : failure);
}

// A rank that could not compute says so in its votes, and the others end, too.
void JobRunner::OnVerifyDone(uint32_t rank, const internal::v1::VerifyDone& done) {
  if (p_.jobs.running().TakeStopped(rank, done.id())) return;
  CallJob* job = FindRunning<VerifyJob>(rank, done.id());
  if (job == nullptr) return;
  Verification& answers = *std::get<VerifyJob>(job->work).answers;
  if (const absl::Status checked = answers.Add(rank, done); !checked.ok()) {
    return membership_->Breach(p_.gang.worker(rank).session, checked);
  }
  const absl::Status failure = done.has_failure() ? FailureOfWorker(done.failure()) : absl::OkStatus();
  if (!IsOver(rank, failure)) return;
  absl::StatusOr<v1::VerifyGroupResponse> answer = failure.ok() ? answers.Answer() : failure;
  if (!answer.ok()) return p_.jobs.FinishCallJob(done.id(), answer.status());
  answer->set_step(p_.lineage.step());
  answer->set_lineage(p_.lineage.name());
  p_.jobs.FinishCallJob(done.id(), *std::move(answer));
}

void JobRunner::OnExportDone(uint32_t rank, const internal::v1::ExportDone& done) {
  const CallJob* job = FindRunning<ExportJob>(rank, done.id());
  if (job == nullptr) return;
  RunningJob& running = p_.jobs.running();
  const absl::Status of_rank = done.has_failure() ? FailureOfWorker(done.failure()) : absl::OkStatus();
  if (!running.AddDone(rank, of_rank, done.bytes())) return;
  const v1::ExportWeightsRequest& request = std::get<ExportJob>(job->work).request;
  const std::string path = ExportPath(p_.options.data_directory, request.name());
  if (const absl::Status failure = running.failure(); !failure.ok()) {
    if (std::get<ExportJob>(job->work).name_is_free) written_.Forget(request.name());
    p_.out.Add(RemoveUnfinishedExportsAction{});  // a rank that failed before it had the folder leaves it
    const bool exists = absl::IsAlreadyExists(failure);
    return p_.jobs.FinishCallJob(done.id(),
                                 exists ? ExportExistsError(path, written_.FactsOf(request.name())) : failure);
  }
  NoteWritten(request);
  v1::ExportWeightsResponse response;
  response.set_path(path);
  response.set_step(p_.lineage.step());
  response.set_weight_version(p_.lineage.weight_version());
  response.set_lineage(p_.lineage.name());
  response.set_bytes(running.bytes());
  p_.jobs.FinishCallJob(done.id(), std::move(response));
}

// The ranks do not find the folder, and end the job: why it is not there says more than that.
void JobRunner::OnExportFolder(const ExportFolderEvent& event) {
  if (p_.jobs.running().Is(event.id)) p_.jobs.running().SetFailure(event.failure);
}

void JobRunner::NoteWritten(const v1::ExportWeightsRequest& request) {
  written_.Add(
      {.name = request.name(), .lineage = p_.lineage.name(), .step = p_.lineage.step(), .dtype = request.dtype()});
}

}  // namespace stemma::server
