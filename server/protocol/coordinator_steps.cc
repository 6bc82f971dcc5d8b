// The step protocol and the queue of jobs.
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/admission/run_numbers.h"
#include "common/base/dtype_names.h"
#include "common/base/error.h"
#include "common/base/step_key.h"
#include "glog/logging.h"
#include "server/planner/memory_division.h"
#include "server/protocol/coordinator_send.h"
#include "server/protocol/step_messages.h"
#include "server/protocol/step_metrics.h"
#include "server/protocol/worker_messages.h"

namespace stemma::server {
namespace {

using internal::v1::StepKey;

constexpr int kSamplesUnsavedMax = 8;

// In an operator's words.
std::string StepText(const StepKey& key) {
  return absl::StrCat("step ", key.step(), " of request ", WorkerText(key.request_id()), " (attempt ", key.attempt(),
                      ")");
}

absl::Status NonfiniteError(const std::string& message) {
  return MakeError(Reason::kNonfiniteGradient, absl::StrCat(message, "; nothing of this step was applied"));
}

// Returns why a gradient whose numbers are finite cannot be applied; "": it can.
std::string NormProblem(const v1::AdamParams& adam, double grad_norm_squared, const RunNumbers& numbers) {
  if (!std::isfinite(grad_norm_squared)) return "the gradient is not finite: the norm overflows";
  const std::string problem =
      CheckClippedNorm(std::sqrt(grad_norm_squared), ClipFactor(adam, grad_norm_squared), numbers);
  return problem.empty() ? "" : absl::StrCat("the gradient is too large: ", problem);
}

absl::Status NoVoteError(const internal::v1::Vote& vote) {
  if (vote.no_reason() == internal::v1::OUT_OF_MEMORY) {
    return MakeError(Reason::kGroupTooLarge, absl::StrCat("the worker ran out of memory: ", WorkerText(vote.message()),
                                                          "; send smaller groups"));
  }
  return MakeError(Reason::kInternal, absl::StrCat("the worker failed: ", WorkerText(vote.message())));
}

}  // namespace

void CoordinatorState::StartJobs() {
  while (!running_ && worker_ && worker_->ready && !draining_ && !queue_.empty()) {
    const std::string id = queue_.front();
    queue_.pop_front();
    if (UpdateRecord* record = table_.Find(id)) {
      StartUpdate(*record);
    } else {
      StartCallJob(id, call_jobs_.at(id));
    }
  }
}

void CoordinatorState::StartUpdate(UpdateRecord& record) {
  CHECK_EQ(record.lineage, lineage_) << record.id;
  if (absl::Status status = CheckExpected(record.request->header(), step_); !status.ok()) {
    return FinishUpdate(record, v1::FAILED, status);
  }
  if (const std::string problem = PlanProblem(record.plan.report, options_.model, config_); !problem.empty()) {
    record.resumable = true;
    return FinishUpdate(record, v1::FAILED, PlanMisfit(problem));
  }
  running_ = Running{.id = record.id};
  if (record.request->update.return_log_probs()) running_->results.emplace(record.request);
  decision_.actions.push_back(SendPayloadAction{worker_->session, record.id, record.request});
  PrepareNextStep(record);
}

void CoordinatorState::StartCallJob(const std::string& id, const CallJob& job) {
  if (job.request != nullptr) {
    if (absl::Status status = CheckExpected(job.request->header(), step_); !status.ok()) {
      return FinishCallJob(id, status);
    }
    if (const std::string problem = PlanProblem(job.plan.report, options_.model, config_); !problem.empty()) {
      return FinishCallJob(id, PlanMisfit(problem));
    }
  }
  running_ = Running{.id = id};
  if (job.request == nullptr) {
    internal::v1::Export message;
    message.set_id(id);
    message.set_name(job.export_request.name());
    if (job.export_request.has_dtype()) message.set_dtype(LongDtypeName(job.export_request.dtype()));
    running_->watch = Watch(absl::StrCat("export ", message.name()), ExportSeconds(options_.model));
    SendToWorker(std::move(message));
    return;
  }
  running_->results.emplace(job.request);
  decision_.actions.push_back(SendPayloadAction{worker_->session, id, job.request});
  running_->watch = Watch(absl::StrCat("log-prob pass ", id), LogProbSeconds(job.plan, job.request->bytes));
  internal::v1::LogProb message;
  message.set_id(id);
  *message.mutable_header() = job.request->log_prob;
  *message.mutable_plan() = job.plan.step(0);
  SendToWorker(std::move(message));
}

void CoordinatorState::PrepareNextStep(UpdateRecord& record) {
  for (; record.k < record.plan.num_steps(); ++record.k) {
    if (StepNeedsWorker(record.plan, record.k)) return SendPrepare(record);
    AddStepResult(record, v1::StepResult::SKIPPED_EMPTY, nullptr);
  }
  FinishUpdate(record, v1::DONE, absl::OkStatus());
}

void CoordinatorState::SendPrepare(UpdateRecord& record) {
  StepKey key;
  key.set_epoch(options_.epoch);
  key.set_incarnation(worker_->incarnation);
  key.set_generation(generation_);
  key.set_step(step_ + 1);
  key.set_attempt(record.attempt);
  key.set_request_id(record.id);
  key.set_k(record.k);
  SendToWorker(MakePrepare(key, record.request->update, record.plan));

  running_->phase = Phase::kPreparing;
  running_->key = key;
  running_->prepared_at = now_;
  running_->watch =
      Watch(absl::StrCat("PREPARE of ", StepText(key)), PrepareSeconds(record.plan, record.k, record.request->bytes));
  record.status.set_state(v1::PREPARING);
}

void CoordinatorState::OnVote(const internal::v1::Vote& vote) {
  if (!running_ || running_->phase != Phase::kPreparing || !SameStepKey(running_->key, vote.key())) {
    return Ignore(absl::StrCat("the worker's vote on ", StepText(vote.key()), ", which is over"));
  }
  UpdateRecord& record = RunningUpdate();
  if (!vote.yes())
    return OnNoVote(record, vote, absl::StrCat("the gradient is not finite: ", WorkerText(vote.message())));
  if (vote.empty()) return SendApply(record, vote, v1::StepResult::SKIPPED_EMPTY);
  const std::string problem =
      NormProblem(record.request->update.adam(), vote.grad_norm_squared(), NumbersOfRun(config_.dtype()));
  if (!problem.empty()) return OnNoVote(record, vote, problem);
  SendApply(record, vote, v1::StepResult::APPLIED);
}

// `problem`: of the gradient, where that is why the step is not applied.
void CoordinatorState::OnNoVote(UpdateRecord& record, const internal::v1::Vote& vote, const std::string& problem) {
  if (!vote.yes() &&
      vote.no_reason() == internal::v1::CANCELLED) {  // an Abort ends the step here: no vote on it counts any more
    return Breach(worker_->session, absl::InvalidArgumentError("a step that nobody cancelled is voted CANCELLED"));
  }
  const bool nonfinite = vote.yes() || vote.no_reason() == internal::v1::NONFINITE;
  if (nonfinite && record.request->header().on_nonfinite() == v1::SKIP) {
    return SendApply(record, vote, v1::StepResult::SKIPPED_NONFINITE);
  }
  AbortRunning();
  FinishUpdate(record, v1::FAILED, nonfinite ? NonfiniteError(problem) : NoVoteError(vote));
}

void CoordinatorState::SendApply(UpdateRecord& record, const internal::v1::Vote& vote,
                                 v1::StepResult::Outcome outcome) {
  SendToWorker(MakeApply(running_->key, record.request->update.adam(), record.plan, vote, outcome));
  running_->phase = Phase::kCommitted;
  running_->watch = Watch(absl::StrCat("APPLY of ", StepText(running_->key)), ApplySeconds(record.plan, record.k));
  running_->vote = vote;
  running_->outcome = outcome;
  record.status.set_state(v1::COMMITTED);
}

void CoordinatorState::OnApplied(const internal::v1::Applied& applied) {
  if (!running_ || running_->phase != Phase::kCommitted || !SameStepKey(running_->key, applied.key())) {
    return Ignore(absl::StrCat("the worker's report that it applied ", StepText(applied.key()), ", which is over"));
  }
  UpdateRecord& record = RunningUpdate();
  if (!applied.nonfinite().empty()) return LoseWeights(record, WorkerText(applied.nonfinite()));
  if (running_->outcome == v1::StepResult::APPLIED) {
    ++step_;
    ++weight_version_;
    record.status.set_steps_applied(record.status.steps_applied() + 1);
    Measure(record, applied);
  }
  AddStepResult(record, running_->outcome, &applied);
  record.status.set_state(v1::APPLIED);
  // A lost worker repeats the steps that were skipped before its own, so only an applied step renews the attempts.
  if (running_->outcome == v1::StepResult::APPLIED) record.attempt = 1;
  ++record.k;
  const bool more = record.k < record.plan.num_steps();
  if (more && record.cancel_requested) {
    CancelUpdate(record);
  } else if (more && draining_) {
    FinishUpdate(
        record, v1::FAILED,
        DrainingError(absl::StrCat(" after step ", record.k, " of ", record.plan.num_steps(), " of this request")));
  } else {
    PrepareNextStep(record);
  }
}

// The weights in the worker are of no use any more. The model stays with them, UNUSABLE, until that worker is lost: the
// next one loads the model directory under a new lineage.
void CoordinatorState::LoseWeights(const UpdateRecord& record, const std::string& parameter) {
  ++weight_version_;
  unusable_ = absl::StrCat("step ", step_ + 1, " (request ", record.id, ") wrote numbers that are not finite into ",
                           parameter, " or its optimizer state: the weights of lineage ", lineage_,
                           " are lost; restart the worker, which loads the model directory again under a new lineage");
  Say(unusable_);
  decision_.actions.push_back(ReadinessAction{false});
  FailEverything(UnusableError());
  if (draining_) FinishDrain();
}

// The applied step's phases calibrate the plans of requests to come.
void CoordinatorState::Measure(const UpdateRecord& record, const internal::v1::Applied& applied) {
  const PhaseWork* work = record.plan.phase_work(record.k);
  if (work == nullptr) return;
  const internal::v1::StepSums& sums = running_->vote.sums();
  calibration_.Add({.work = *work,
                    .seconds = {sums.prefix_forward_s(), sums.suffix_s(), sums.prefix_backward_s()},
                    .apply_s = applied.apply_s()});
  if (++samples_unsaved_ >= kSamplesUnsavedMax) SaveCalibration();
}

void CoordinatorState::AddStepResult(UpdateRecord& record, v1::StepResult::Outcome outcome,
                                     const internal::v1::Applied* applied) {
  v1::StepResult& result = *record.result.add_steps();
  result.set_step(step_);
  result.set_weight_version(weight_version_);
  result.set_attempts(record.attempt);
  result.set_outcome(outcome);
  result.set_epoch(record.plan.epoch(record.k));
  result.set_num_groups(record.plan.step(record.k).groups_size());
  const StepNumbers& numbers = record.plan.numbers(record.k);
  result.mutable_warnings()->Add(numbers.empty.warnings.begin(), numbers.empty.warnings.end());
  if (outcome == v1::StepResult::SKIPPED_NONFINITE) return;
  const bool empty = outcome == v1::StepResult::SKIPPED_EMPTY;
  const internal::v1::Vote vote = empty ? EmptyVote(numbers) : running_->vote;
  SetStepMetrics({.header = record.request->update,
                  .report = StepReportOf(record.plan, record.k),
                  .state = record.plan.report.state(),
                  .numbers = numbers,
                  .vote = vote,
                  .apply_s = empty ? 0 : applied->apply_s(),
                  .elapsed = applied == nullptr ? absl::ZeroDuration() : now_ - running_->prepared_at},
                 *result.mutable_metrics());
}

// Counts a message of another attempt or job: late, and harmless.
void CoordinatorState::Ignore(const std::string& what) {
  Say(absl::StrCat("ignored: ", what, "; ", ++ignored_, " such messages so far"));
}

void CoordinatorState::OnResultChunk(const internal::v1::ResultChunk& chunk) {
  if (!IsRunning(chunk.id())) {
    return Ignore(absl::StrCat("results of ", WorkerText(chunk.id()), ", which does not run"));
  }
  const absl::Status expected = running_->results ? running_->results->Add(chunk.group())
                                                  : absl::InvalidArgumentError("results of a job that has none");
  if (!expected.ok()) return Breach(worker_->session, expected);
  auto group = std::make_shared<v1::GroupResult>(chunk.group());
  group->set_lineage(lineage_);
  if (const auto job = call_jobs_.find(chunk.id()); job != call_jobs_.end()) {
    decision_.actions.push_back(ChunkAction{job->second.call, std::move(group)});
  } else {
    RunningUpdate().results.push_back(std::move(group));
  }
}

// Null: it does not run, or is of the other kind; then the message is dealt with.
CoordinatorState::CallJob* CoordinatorState::RunningCallJob(const std::string& id, bool is_export) {
  const auto job = call_jobs_.find(id);
  if (!IsRunning(id) || job == call_jobs_.end()) {
    Ignore(absl::StrCat("the end of ", WorkerText(id), ", which does not run"));
    return nullptr;
  }
  if ((job->second.request == nullptr) == is_export) return &job->second;
  Breach(worker_->session, absl::InvalidArgumentError("the end of a job of another kind"));
  return nullptr;
}

void CoordinatorState::OnLogProbDone(const internal::v1::LogProbDone& done) {
  if (RunningCallJob(done.id(), /*is_export=*/false) == nullptr) return;
  FinishCallJob(done.id(), done.has_failure() ? FailureOfWorker(done.failure()) : absl::OkStatus());
}

void CoordinatorState::OnExportDone(const internal::v1::ExportDone& done) {
  const CallJob* job = RunningCallJob(done.id(), /*is_export=*/true);
  if (job == nullptr) return;
  const std::string& name = job->export_request.name();
  if (done.has_failure()) {
    const absl::Status failure = FailureOfWorker(done.failure());
    return FinishCallJob(done.id(), absl::IsAlreadyExists(failure) ? ExportExistsError(name) : failure);
  }
  v1::ExportWeightsResponse response;
  response.set_path(ExportPath(name));
  response.set_step(step_);
  response.set_weight_version(weight_version_);
  response.set_lineage(lineage_);
  response.set_bytes(done.bytes());
  FinishCallJob(done.id(), std::move(response));
}

void CoordinatorState::OnRefused(const internal::v1::Refused& refused) {
  const std::string why = WorkerText(refused.message());
  if (!worker_->ready) {  // it refused Configure: it cannot serve
    decision_.actions.push_back(CloseSessionAction{worker_->session, absl::AbortedError("it refused Configure")});
    return LoseWorker(absl::StrCat("it cannot load the model: ", why));
  }
  Say(absl::StrCat("the worker refused ", StepText(refused.key()), ": ", why));
  if (!running_ || running_->phase == Phase::kCallJob || !SameStepKey(running_->key, refused.key())) return;
  // We cannot know whether the step was applied, so we drop this worker and let recovery decide.
  if (running_->phase == Phase::kCommitted) {
    decision_.actions.push_back(CloseSessionAction{worker_->session, absl::AbortedError("it refused an Apply")});
    return LoseWorker(absl::StrCat("it refused an Apply: ", why));
  }
  FinishUpdate(RunningUpdate(), v1::FAILED,
               MakeError(Reason::kInternal, absl::StrCat("the worker refused the step: ", why)));
}

void CoordinatorState::FinishUpdate(UpdateRecord& record, v1::RequestState state, const absl::Status& failure) {
  record.status.set_state(state);
  record.failure = failure;
  if (!failure.ok()) *record.status.mutable_failure() = ToFailure(failure);
  if (state == v1::DONE) {
    SetRequestMetrics(record.result, *record.result.mutable_metrics());
    AddStepWarnings(record.result);
    *record.status.mutable_result() = std::move(record.result);
  }
  record.result = v1::UpdateResult();  // Clear would keep its memory
  if (IsRunning(record.id)) {
    running_.reset();
    if (worker_) {
      internal::v1::DropPayload drop;
      drop.set_id(record.id);
      SendToWorker(std::move(drop));
    }
  }
  std::erase(queue_, record.id);
  for (const RequestWaiter& waiter : std::exchange(record.waiters, {})) AnswerWaiter(record, waiter);
  Say(absl::StrCat("request ", record.id, " is ", v1::RequestState_Name(state), " after ",
                   record.status.steps_applied(), " of ", record.status.steps_total(), " steps",
                   failure.ok() ? "" : absl::StrCat(": ", ErrorReason(failure), ": ", failure.message())));
  table_.Finalize(record);
}

void CoordinatorState::CancelUpdate(UpdateRecord& record) {
  FinishUpdate(record, v1::CANCELLED,
               MakeError(Reason::kCancelled,
                         absl::StrCat("request ", record.id, " was cancelled after ", record.status.steps_applied(),
                                      " of ", record.status.steps_total(), " steps; those stay")));
}

void CoordinatorState::FinishCallJob(const std::string& id, stemma::server::Reply reply) {
  const auto job = call_jobs_.find(id);
  CHECK(job != call_jobs_.end()) << id;
  if (IsRunning(id)) {
    running_.reset();
    if (worker_ && job->second.request != nullptr) {
      internal::v1::DropPayload drop;
      drop.set_id(id);
      SendToWorker(std::move(drop));
    }
  }
  std::erase(queue_, id);
  if (job->second.request != nullptr) call_job_bytes_ -= job->second.request->bytes;
  if (job->second.call != 0) Reply(job->second.call, std::move(reply));
  call_jobs_.erase(job);
}

// REQUIRES: a worker, and nothing committed. A late vote or result is ignored by its key or id.
void CoordinatorState::AbortRunning() {
  CHECK(running_ && running_->phase != Phase::kCommitted);
  internal::v1::Abort abort;
  *abort.mutable_key() = running_->key;
  abort.mutable_key()->set_request_id(running_->id);
  SendToWorker(std::move(abort));
}

UpdateRecord& CoordinatorState::RunningUpdate() {
  UpdateRecord* record = table_.Find(running_->id);
  CHECK(record != nullptr) << running_->id;
  return *record;
}

}  // namespace stemma::server
