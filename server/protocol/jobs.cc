#include "server/protocol/jobs.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "glog/logging.h"
#include "server/protocol/step_metrics.h"
#include "server/protocol/step_warnings.h"

namespace stemma::server {
namespace {

UpdateRecord RecordOf(const TrainingRequest& request, const std::string& lineage) {
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
  *record.result.mutable_effective() = request.update;
  const v1::UpdateHeader& update = request.update;
  if (update.has_ppo_mini_batch_size() && request.groups.size() % update.ppo_mini_batch_size() != 0) {
    record.result.add_warnings(absl::StrCat("the last mini-batch of an epoch has ",
                                            request.groups.size() % update.ppo_mini_batch_size(), " groups instead of ",
                                            update.ppo_mini_batch_size()));
  }
  return record;
}

}  // namespace

absl::Time WaitDeadline(absl::Time now, const v1::RequestHeader& header) {
  if (!header.has_wait_ms()) return absl::InfiniteFuture();
  return now + absl::Milliseconds(std::min<uint64_t>(header.wait_ms(), 1ull << 40));
}

UpdateRecord& Jobs::RunningUpdate() {
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
    queue_.AddCallJob({.call = call, .work = ExportJob{std::move(arrival.export_request)}});
    return;
  }
  const std::string id =
      queue_.AddCallJob({.call = call, .work = LogProbJob{arrival.request, std::move(**arrival.plan)}});
  out_->AddReason(absl::StrCat("log-prob pass ", id, " accepted: ", arrival.request->groups.size(), " groups, ",
                               arrival.request->num_rollouts, " rollouts"));
}

UpdateRecord& Jobs::AcceptUpdate(const Arrival& arrival, RequestPlan plan) {
  const TrainingRequest& request = *arrival.request;
  UpdateRecord record = RecordOf(request, lineage_->name());
  record.request = arrival.request;
  *record.result.mutable_plan() = plan.report;
  record.plan = std::move(plan);
  UpdateRecord& kept = table_.Insert(std::move(record));
  queue_.AddUpdate(kept.id);
  out_->AddReason(absl::StrCat("request ", kept.id, " accepted: ", request.groups.size(), " groups, ",
                               request.num_rollouts, " rollouts, ", kept.status.steps_total(), " steps, digest ",
                               kept.digest.substr(0, 16)));
  for (const Arrival::Sender& sender : arrival.senders) {
    Wait(kept,
         {.call = sender.call, .deadline = WaitDeadline(out_->now(), request.header()), .replayed = sender.replayed});
  }
  for (const RequestWaiter& watcher : arrival.watchers) Wait(kept, watcher);
  return kept;
}

void Jobs::Wait(UpdateRecord& record, const RequestWaiter& waiter) {
  if (record.final() || waiter.deadline <= out_->now()) return AnswerWaiter(record, waiter);
  record.waiters.push_back(waiter);
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
  for (UpdateRecord* record : table_.Open()) {
    std::vector<RequestWaiter> due;
    std::erase_if(record->waiters, [&](const RequestWaiter& waiter) {
      if (waiter.deadline > out_->now()) return false;
      due.push_back(waiter);
      return true;
    });
    for (const RequestWaiter& waiter : due) AnswerWaiter(*record, waiter);
  }
}

absl::Status Jobs::FailureOf(const UpdateRecord& record) const {
  return record.lost_step ? lineage_->RolledBackError(record) : record.failure;
}

v1::RequestStatus Jobs::StatusOf(const UpdateRecord& record) const {
  v1::RequestStatus status = record.status;
  if (record.lost_step) {
    status.set_state(v1::ROLLED_BACK);
    *status.mutable_failure() = ToFailure(lineage_->RolledBackError(record));
  }
  if (const auto place = queue_.PlaceOf(record.id)) status.set_queue_position(*place);
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
  record.status.set_state(state);
  record.failure = failure;
  if (!failure.ok()) *record.status.mutable_failure() = ToFailure(failure);
  if (state == v1::DONE) {
    SetRequestMetrics(record.result, *record.result.mutable_metrics());
    AddStepWarnings(record.result);
    *record.status.mutable_result() = std::move(record.result);
  }
  record.result = v1::UpdateResult();  // Clear would keep its memory
  if (running_.Is(record.id)) EndRunning(record.id, /*has_payload=*/true);
  queue_.RemoveUpdate(record.id);
  for (const RequestWaiter& waiter : std::exchange(record.waiters, {})) AnswerWaiter(record, waiter);
  out_->AddReason(absl::StrCat("request ", record.id, " is ", v1::RequestState_Name(state), " after ",
                               record.status.steps_applied(), " of ", record.status.steps_total(), " steps",
                               failure.ok() ? "" : absl::StrCat(": ", ErrorReason(failure), ": ", failure.message())));
  table_.Finalize(record);
}

void Jobs::CancelUpdate(UpdateRecord& record) {
  FinishUpdate(record, v1::CANCELLED,
               MakeError(Reason::kCancelled,
                         absl::StrCat("request ", record.id, " was cancelled after ", record.status.steps_applied(),
                                      " of ", record.status.steps_total(), " steps; those stay")));
}

void Jobs::FinishCallJob(const std::string& id, stemma::server::Reply reply) {
  const CallJob job = queue_.RemoveCallJob(id);
  if (running_.Is(id)) EndRunning(id, /*has_payload=*/!job.is_export());
  if (job.call != 0) out_->Reply(job.call, std::move(reply));
}

void Jobs::AbortRunning() {
  for (uint32_t rank = 0; rank < gang_->num_ranks(); ++rank) {
    out_->Send(gang_->worker(rank).session, running_.AbortMessage(rank));
  }
}

void Jobs::FailAll(const absl::Status& status) {
  for (UpdateRecord* record : table_.Open()) FinishUpdate(*record, v1::FAILED, status);
  for (const std::string& id : queue_.CallJobIds()) FinishCallJob(id, status);
  CHECK(queue_.empty()) << "something is in the queue and not open";
}

void Jobs::FailWaiting(const absl::Status& status) {
  for (UpdateRecord* record : table_.Open()) {
    if (!running_.Is(record->id)) FinishUpdate(*record, v1::FAILED, status);
  }
  for (const std::string& id : queue_.CallJobIds()) {
    if (!running_.Is(id)) FinishCallJob(id, status);
  }
}

void Jobs::RollBack(const LostLineage& lost) {
  for (UpdateRecord* record : table_.InOrder()) {
    if (record->lineage != lost.name) continue;
    record->lost_step = lost.step;
    if (record->final()) table_.DropResults(*record);
  }
  for (UpdateRecord* record : table_.Open()) FinishUpdate(*record, v1::ROLLED_BACK, lineage_->RolledBackError(*record));
}

void Jobs::Leave(CallId call) {
  for (UpdateRecord* record : table_.Open()) {
    std::erase_if(record->waiters, [&](const RequestWaiter& waiter) { return waiter.call == call; });
  }
  const std::string id = queue_.CallJobOf(call);
  if (id.empty()) return;
  CallJob& job = *queue_.FindCallJob(id);
  job.call = 0;
  if (job.is_export()) return;
  if (running_.Is(id)) AbortRunning();
  FinishCallJob(id, absl::CancelledError("the client left"));
}

uint64_t Jobs::StepAfterOpen() {
  uint64_t step = lineage_->step();
  for (const UpdateRecord* record : table_.Open()) {
    step += record->status.steps_total() - std::min(record->k, record->status.steps_total());
  }
  return step;
}

absl::Time Jobs::NextDeadline() {
  absl::Time next = absl::InfiniteFuture();
  for (const UpdateRecord* record : table_.Open()) {
    for (const RequestWaiter& waiter : record->waiters) next = std::min(next, waiter.deadline);
  }
  return next;
}

}  // namespace stemma::server
