#include "server/protocol/jobs.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/admission/log_prob_sources.h"
#include "common/base/error.h"
#include "common/base/request_state.h"
#include "glog/logging.h"

namespace stemma::server {
namespace {

// A larger report of a plan is not in the journal: the result of a request that is asked for after a restart lacks it.
constexpr size_t kReportBytesMax = 64 << 10;

// Returns the header with what it left to the server.
v1::UpdateHeader InForce(const TrainingRequest& request, v1::Schedule of_run) {
  v1::UpdateHeader update = request.update;
  v1::RequestHeader& header = *update.mutable_request();
  if (header.on_nonfinite() == v1::ON_NONFINITE_UNSPECIFIED) header.set_on_nonfinite(v1::ABORT);
  if (!header.has_schedule()) header.set_schedule(of_run);
  if (!update.has_ppo_mini_batch_size()) update.set_ppo_mini_batch_size(request.groups.size());
  if (!update.has_ppo_epochs()) update.set_ppo_epochs(1);
  return update;
}

UpdateRecord RecordOf(const TrainingRequest& request, const std::string& lineage, v1::Schedule of_run) {
  UpdateRecord record;
  record.id = request.header().request_id();
  record.digest = request.digest;
  record.lineage = lineage;
  record.bytes = request.bytes;
  record.status.set_request_id(record.id);
  record.status.set_state(v1::ACCEPTED);
  record.status.set_steps_total(static_cast<uint32_t>(request.num_steps));
  record.status.set_lineage(lineage);
  record.result.set_lineage(lineage);
  *record.result.mutable_effective() = InForce(request, of_run);
  const v1::UpdateHeader& update = request.update;
  if (update.has_ppo_mini_batch_size() && request.groups.size() % update.ppo_mini_batch_size() != 0) {
    record.result.add_warnings(absl::StrCat("the last mini-batch of an epoch has ",
                                            request.groups.size() % update.ppo_mini_batch_size(), " groups instead of ",
                                            update.ppo_mini_batch_size()));
  }
  return record;
}

// As an earlier server left it: its groups are in the spool, if anywhere, and its log-probs are gone.
UpdateRecord RecordOf(const internal::v1::KnownRequest& known) {
  UpdateRecord record;
  record.id = known.request_id();
  record.digest = known.digest();
  record.lineage = known.lineage();
  record.bytes = known.bytes();
  record.status = known.status();
  record.result = known.result();
  record.ended = IsFinal(known.status().state());
  if (known.status().has_failure()) record.failure = FromFailure(known.status().failure());
  if (known.has_lost_step()) record.lost_step = known.lost_step();
  record.resumable = known.resumable();
  record.last_step = known.last_step();
  record.end_order = known.end_order();
  record.results_dropped = record.ended;
  return record;
}

void NameLineageOfRecord(const std::string& name, UpdateRecord& record) {
  record.lineage = name;
  record.status.set_lineage(name);
  record.result.set_lineage(name);
  if (record.status.has_result()) record.status.mutable_result()->set_lineage(name);
}

internal::v1::RequestAccepted AcceptedRow(const UpdateRecord& record, const Arrival& arrival) {
  internal::v1::RequestAccepted row;
  row.set_request_id(record.id);
  row.set_digest(record.digest);
  row.set_bytes(record.bytes);
  row.set_steps_total(record.status.steps_total());
  *row.mutable_begun() = record.result;
  if (row.begun().plan().ByteSizeLong() > kReportBytesMax) row.mutable_begun()->clear_plan();
  if (arrival.spool) *row.mutable_spool() = *arrival.spool;
  return row;
}

}  // namespace

absl::Duration WaitOf(const v1::RequestHeader& header) {
  if (!header.has_wait_ms()) return absl::InfiniteDuration();
  return absl::Milliseconds(std::min<uint64_t>(header.wait_ms(), 1ull << 40));
}

void Jobs::Restore() {
  for (const std::string& id : history_->state().expired_ids()) table_.RestoreExpired(id);
  for (const internal::v1::KnownRequest& known : history_->state().requests()) {
    UpdateRecord record = RecordOf(known);
    if (!record.final()) queue_.AddUpdate(record.id);
    table_.Restore(std::move(record));
  }
}

UpdateRecord& Jobs::HoldAgain(const std::string& id, LoadedRequest loaded) {
  CHECK(!running_.exists() && !again_) << id;
  UpdateRecord& record = again_.emplace();
  record.id = id;
  record.lineage = lineage_->name();
  record.request = std::move(loaded.request);
  record.plan = std::move(loaded.plan);
  record.again = true;
  return record;
}

void Jobs::EndAgain() {
  CHECK(again_ && running_.Is(again_->id));
  EndRunning(again_->id, /*has_payload=*/true);
  again_.reset();
}

UpdateRecord& Jobs::RunningUpdate() {
  if (again_) return *again_;
  UpdateRecord* record = table_.Find(running_.id());
  CHECK(record != nullptr) << running_.id();
  return *record;
}

void Jobs::Accept(Arrival arrival) {
  if (arrival.is_update()) {
    AcceptUpdate(arrival, std::move(**arrival.plan));
    return;
  }
  const CallId call = arrival.senders.empty() ? 0 : arrival.senders[0].call;
  if (arrival.request == nullptr) {
    std::visit([&](auto& work) { queue_.AddCallJob({.call = call, .work = std::move(work)}); }, arrival.work);
    return;
  }
  const bool verifies = arrival.request->kind == TrainingRequest::Kind::kVerify;
  CallJob job;
  job.call = call;
  if (verifies) {
    job.work = VerifyJob{arrival.request, std::make_shared<const RequestPlan>(std::move(**arrival.plan)), nullptr};
  } else {
    job.work = LogProbJob{arrival.request, std::move(**arrival.plan)};
  }
  const std::string id = queue_.AddCallJob(std::move(job));
  out_->AddReason(absl::StrCat(verifies ? "verification " : "log-prob pass ", id,
                               " accepted: ", arrival.request->groups.size(), " groups, ",
                               arrival.request->num_rollouts, " rollouts"));
}

UpdateRecord& Jobs::AcceptUpdate(const Arrival& arrival, RequestPlan plan) {
  const TrainingRequest& request = *arrival.request;
  UpdateRecord record = RecordOf(request, lineage_->name(), gang_->config().schedule());
  record.request = arrival.request;
  *record.result.mutable_plan() = plan.report;
  record.plan = std::move(plan);
  history_->Accept(AcceptedRow(record, arrival));
  UpdateRecord& kept = table_.Insert(std::move(record));
  queue_.AddUpdate(kept.id);
  out_->AddReason(absl::StrCat("request ", kept.id, " accepted: ", request.groups.size(), " groups, ",
                               request.num_rollouts, " rollouts, ", kept.status.steps_total(), " steps, digest ",
                               kept.digest.substr(0, 16)));
  for (const Arrival::Sender& sender : arrival.senders) {
    Wait(kept, {.call = sender.call, .deadline = out_->now() + sender.wait, .replayed = sender.replayed});
  }
  for (const RequestWaiter& watcher : arrival.watchers) Wait(kept, watcher);
  return kept;
}

void Jobs::Wait(UpdateRecord& record, const RequestWaiter& waiter) {
  if (record.final() || waiter.deadline <= out_->now()) return AnswerWaiter(record, waiter);
  waiters_.Add(record.id, waiter);
}

void Jobs::AnswerWaiter(const UpdateRecord& record, const RequestWaiter& waiter) {
  if (waiter.failure_is_error) {
    if (absl::Status failure = FailureOf(record); !failure.ok()) return out_->Reply(waiter.call, failure);
  }
  v1::RequestStatus status = StatusOf(record);
  status.set_replayed(waiter.replayed);
  out_->Reply(waiter.call, std::move(status));
}

void Jobs::AnswerDueWaiters() {
  for (const RequestWaiters::Due& due : waiters_.TakeDue(out_->now())) {
    const UpdateRecord* record = table_.Find(due.request_id);
    CHECK(record != nullptr) << due.request_id;
    AnswerWaiter(*record, due.waiter);
  }
}

absl::Status Jobs::FailureOf(const UpdateRecord& record) const {
  return record.lost_step ? lineage_->RolledBackError(record) : record.failure;
}

v1::ListRequestsResponse Jobs::List() {
  v1::ListRequestsResponse response;
  const absl::flat_hash_map<std::string_view, uint32_t> places = queue_.Places();
  for (const UpdateRecord* record : table_.InOrder()) {
    const auto place = places.find(record->id);
    *response.add_requests() = AsOfNow(*record, ListedStatus(record->status),
                                       place == places.end() ? std::nullopt : std::optional(place->second));
  }
  return response;
}

v1::RequestStatus Jobs::AsOfNow(const UpdateRecord& record, v1::RequestStatus status,
                                std::optional<uint32_t> place) const {
  if (record.lost_step) {
    status.set_state(v1::ROLLED_BACK);
    *status.mutable_failure() = ToFailure(lineage_->RolledBackError(record));
  }
  if (place) status.set_queue_position(*place);
  return status;
}

void Jobs::EndRunning(const std::string& id, bool has_payload) {
  running_.End();
  if (!gang_->begun() || !has_payload) return;
  for (const Gang::Worker& worker : gang_->workers()) {
    internal::v1::DropPayload drop;
    drop.set_id(id);
    out_->Send(worker.session, std::move(drop));
  }
}

void Jobs::FinishUpdate(UpdateRecord& record, v1::RequestState state, const absl::Status& failure) {
  internal::v1::RequestFinished row;
  row.set_request_id(record.id);
  row.set_state(state);
  if (!failure.ok()) *row.mutable_failure() = ToFailure(failure);
  row.set_resumable(record.resumable);
  history_->Finish(std::move(row));
  End(record, state, failure);
}

void Jobs::End(UpdateRecord& record, v1::RequestState state, const absl::Status& failure) {
  record.status.set_state(state);
  record.failure = failure;
  if (!failure.ok()) *record.status.mutable_failure() = ToFailure(failure);
  if (state == v1::DONE) {
    CompleteResult(record.result);
    *record.status.mutable_result() = std::move(record.result);
  }
  record.result = v1::UpdateResult();  // Clear would keep its memory
  if (running_.Is(record.id)) EndRunning(record.id, /*has_payload=*/true);
  queue_.RemoveUpdate(record.id);
  for (const RequestWaiter& waiter : waiters_.Take(record.id)) AnswerWaiter(record, waiter);
  out_->AddReason(absl::StrCat("request ", record.id, " is ", v1::RequestState_Name(state), " after ",
                               record.status.steps_applied(), " of ", record.status.steps_total(), " steps",
                               failure.ok() ? "" : absl::StrCat(": ", ErrorReason(failure), ": ", failure.message())));
  table_.Finalize(record);
}

void Jobs::GiveUpUpdate(UpdateRecord& record, const std::string& why) {
  const uint32_t applied = record.status.steps_applied();
  record.resumable = applied == 0;
  const std::string outcome = record.resumable
                                  ? "the weights did not change; the same request may be sent again"
                                  : absl::StrCat(applied, " of ", record.status.steps_total(),
                                                 " steps are applied and stay; send the others under a new request_id");
  FinishUpdate(
      record, v1::FAILED,
      MakeError(record.resumable ? Reason::kAttemptsExhausted : Reason::kInternal, absl::StrCat(why, "; ", outcome)));
}

void Jobs::CancelUpdate(UpdateRecord& record) {
  FinishUpdate(record, v1::CANCELLED,
               MakeError(Reason::kCancelled,
                         absl::StrCat("request ", record.id, " was cancelled after ", record.status.steps_applied(),
                                      " of ", record.status.steps_total(), " steps; those stay")));
}

CallJob Jobs::ReleaseCallJob(const std::string& id) {
  CallJob job = queue_.RemoveCallJob(id);
  if (running_.Is(id)) EndRunning(id, job.request() != nullptr);
  return job;
}

void Jobs::FinishCallJob(const std::string& id, stemma::server::Reply reply) {
  const CallJob job = ReleaseCallJob(id);
  call_counts_.Count(job, reply);
  if (job.call != 0) out_->Reply(job.call, std::move(reply));
}

void Jobs::AbortRunning() {
  uint32_t rank = 0;
  for (internal::v1::Abort& abort : running_.Abort()) out_->Send(gang_->worker(rank++).session, std::move(abort));
}

void Jobs::FailAll(const absl::Status& status) {
  if (again_) EndAgain();
  for (UpdateRecord* record : table_.Open()) FinishUpdate(*record, v1::FAILED, status);
  for (const std::string& id : queue_.CallJobIds()) FinishCallJob(id, status);
  CHECK(queue_.empty()) << "something is in the queue and not open";
}

void Jobs::LeaveAll(const absl::Status& status) {
  if (again_) EndAgain();
  for (UpdateRecord* record : table_.Open()) End(*record, v1::FAILED, status);
  for (const std::string& id : queue_.CallJobIds()) FinishCallJob(id, status);
  CHECK(queue_.empty()) << "something is in the queue and not open";
}

void Jobs::AnswerAllWaiters(const absl::Status& status) {
  for (UpdateRecord* record : table_.Open()) {
    for (const RequestWaiter& waiter : waiters_.Take(record->id)) {
      if (waiter.failure_is_error) {
        out_->Reply(waiter.call, status);
      } else {
        AnswerWaiter(*record, waiter);
      }
    }
  }
  for (const std::string& id : queue_.CallJobIds()) FinishCallJob(id, status);
}

bool Jobs::ReadsCheckpoint(const std::string& name) {
  const std::vector<UpdateRecord*> open = table_.Open();
  return queue_.ReadsCheckpoint(name) || std::any_of(open.begin(), open.end(), [&](const UpdateRecord* record) {
           const std::vector<std::string> read = CheckpointsReadBy(record->result.effective());
           return std::find(read.begin(), read.end(), name) != read.end();
         });
}

void Jobs::LeaveWaiting(const absl::Status& status) {
  for (UpdateRecord* record : table_.Open()) {
    if (again_ || !running_.Is(record->id)) End(*record, v1::FAILED, status);
  }
  for (const std::string& id : queue_.CallJobIds()) {
    if (!running_.Is(id)) FinishCallJob(id, status);
  }
}

void Jobs::RollBack(const LostLineage& lost) {
  for (UpdateRecord* record : table_.InOrder()) {
    if (record->lineage != lost.name) continue;
    if (SurvivesLoss(record->final(), record->last_step, lost.shared_step)) {
      NameLineageOfRecord(lineage_->name(), *record);
      continue;
    }
    record->lost_step = lost.step;
    if (record->final()) table_.DropResults(*record);
  }
  for (UpdateRecord* record : table_.Open()) End(*record, v1::ROLLED_BACK, lineage_->RolledBackError(*record));
}

void Jobs::RenameLineage(const std::string& before) {
  for (UpdateRecord* record : table_.InOrder()) {
    if (record->lineage == before) NameLineageOfRecord(lineage_->name(), *record);
  }
}

void Jobs::Leave(CallId call) {
  waiters_.Remove(call);
  const std::string id = queue_.CallJobOf(call);
  if (id.empty()) return;
  CallJob& job = *queue_.FindCallJob(id);
  job.call = 0;
  const bool waits_to_load = std::holds_alternative<LoadJob>(job.work);  // what others trained stays
  if (job.request() == nullptr && !waits_to_load) return;
  if (running_.Is(id)) AbortRunning();
  FinishCallJob(id, absl::CancelledError("the client left"));
}

uint64_t Jobs::StepAfterOpen() {
  uint64_t step = lineage_->step();
  for (const UpdateRecord* record : table_.Open()) {
    const auto known =
        static_cast<uint32_t>(record->result.steps_size());  // record->k is less while they are computed again
    step += record->status.steps_total() - std::min(known, record->status.steps_total());
  }
  return step;
}

}  // namespace stemma::server
