// Clients' calls: admission, repeats, queries.
#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/dtype_names.h"
#include "common/base/error.h"
#include "common/base/names.h"
#include "common/base/status_macros.h"
#include "common/trace/loss_names.h"
#include "server/protocol/coordinator_send.h"

namespace stemma::server {
namespace {

absl::Status UnknownRequest(const RequestTable& table, const std::string& id) {
  if (const absl::Status name = CheckRequestId(id); !name.ok()) {
    return MakeError(Reason::kInvalidRequest, absl::StrCat("request_id ", absl::string_view(name.message())),
                     {.violations = {{"request_id", std::string(name.message())}}});
  }
  if (table.IsExpired(id)) {
    return MakeError(
        Reason::kRequestIdExpired,
        absl::StrCat("request ", id, " ended long ago; its outcome is no longer kept (limits.requests_kept)"));
  }
  return MakeError(Reason::kNotFound, absl::StrCat("no request ", id, " was accepted"));
}

absl::Status CheckExport(const v1::ExportWeightsRequest& request) {
  for (const auto& [field, name] :
       {std::pair("name", &request.name()), std::pair("expected_lineage", &request.expected_lineage())}) {
    if (name == &request.expected_lineage() && !request.has_expected_lineage()) continue;
    if (absl::Status status = CheckFileName(*name); !status.ok()) {
      return MakeError(Reason::kInvalidRequest, std::string(status.message()),
                       {.violations = {{field, std::string(status.message())}}});
    }
  }
  static constexpr std::array kDtypes = {"float32", "float64", "bfloat16", "float16"};
  const std::string dtype = LongDtypeName(request.dtype());
  if (!request.has_dtype() || std::find(kDtypes.begin(), kDtypes.end(), dtype) != kDtypes.end()) {
    return absl::OkStatus();
  }
  const std::string text = absl::StrCat("is \"", absl::CEscape(request.dtype().substr(0, 40)),
                                        "\", must be one of: float32, float64, bfloat16, float16");
  return MakeError(Reason::kInvalidRequest, absl::StrCat("dtype ", text), {.violations = {{"dtype", text}}});
}

absl::Time Deadline(absl::Time now, std::optional<uint64_t> wait_ms) {
  return wait_ms ? now + absl::Milliseconds(std::min<uint64_t>(*wait_ms, 1ull << 40)) : absl::InfiniteFuture();
}

}  // namespace

absl::Status CoordinatorState::NotServing() const {
  if (draining_) return DrainingError();
  if (!unusable_.empty()) return UnusableError();
  if (worker_ && worker_->ready) return absl::OkStatus();
  if (!ever_ready_) return MakeError(Reason::kStarting, "no worker has loaded the model yet");
  return MakeError(Reason::kRecovering, "the worker was lost and no other has loaded the model yet");
}

absl::Status CoordinatorState::UnusableError() const {
  return MakeError(Reason::kNonfiniteUpdate, unusable_,
                   {.metadata = {{"lineage", lineage_}, {"step", absl::StrCat(step_)}}});
}

absl::Status CoordinatorState::AdmitJob(uint64_t bytes) const {
  const v1::Limits& limits = options_.config.limits();
  const uint64_t jobs = table_.open_count() + call_jobs_.size() + arrivals_.size();
  uint64_t queued_bytes = table_.open_bytes() + call_job_bytes_;
  for (const Arrival& arrival : arrivals_) queued_bytes += arrival.bytes();
  std::string what;
  if (jobs >= limits.requests_in_flight()) {
    what = absl::StrCat(jobs, " requests are in flight, the limit is ", limits.requests_in_flight());
  } else if (queued_bytes > 0 && queued_bytes + bytes > limits.request_bytes_in_flight()) {
    what = absl::StrCat(queued_bytes, " bytes of requests are in flight, with this one's ", bytes, " the limit of ",
                        limits.request_bytes_in_flight(), " is passed");
  } else {
    return absl::OkStatus();
  }
  return MakeError(Reason::kQueueFull, what);
}

// The step at which a request that comes now would start, if nothing before it is skipped or fails.
uint64_t CoordinatorState::StepAfterQueue() {
  uint64_t step = StepAfterAccepted();
  for (const Arrival& arrival : arrivals_) step += arrival.is_update() ? arrival.request->num_steps : 0;
  return step;
}

uint64_t CoordinatorState::StepAfterAccepted() {
  uint64_t step = step_;
  for (const UpdateRecord* record : table_.Open()) {
    step += record->status.steps_total() - std::min(record->k, record->status.steps_total());
  }
  return step;
}

void CoordinatorState::OnEvent(const SubmitEvent& event) {
  const TrainingRequest& request = *event.request;
  const bool update = request.kind == TrainingRequest::Kind::kUpdate;
  const bool validate_only = request.header().validate_only();
  if (update && !validate_only && (AnswerRepeat(event) || JoinArrival(event))) return;
  // First, because a lineage that is gone never comes back, and a server that is not serving may.
  absl::Status admitted = CheckExpected(request.header(), StepAfterQueue());
  if (admitted.ok()) admitted = NotServing();
  if (admitted.ok()) admitted = AdmitJob(request.bytes);
  if (!admitted.ok()) return Reply(event.call, admitted);
  Arrival arrival;
  arrival.request = event.request;
  arrival.senders.push_back({.call = event.call});
  Receive(std::move(arrival));
}

// True: the id was seen before and the call is answered, or waits.
bool CoordinatorState::AnswerRepeat(const SubmitEvent& event) {
  const v1::RequestHeader& header = event.request->header();
  const std::string& id = header.request_id();
  UpdateRecord* record = table_.Find(id);
  if (record == nullptr) {
    if (table_.IsExpired(id)) Reply(event.call, UnknownRequest(table_, id));
    return table_.IsExpired(id);
  }
  const bool same = record->digest == event.request->digest;
  if (record->lost_step) {
    if (!same) return false;  // ids are scoped by lineage: new rollouts under the new one
    Reply(event.call, RolledBackError(*record));
    return true;
  }
  if (!same) {
    Reply(event.call,
          MakeError(Reason::kRequestIdReused, absl::StrCat("request ", id, " was sent before with another payload")));
    return true;
  }
  if (header.has_expected_lineage()) {
    if (absl::Status status = CheckLineage(header.expected_lineage()); !status.ok()) {
      Reply(event.call, status);
      return true;
    }
  }
  if (record->final() && record->resumable) return false;
  const std::optional<uint64_t> wait_ms = header.has_wait_ms() ? std::optional(header.wait_ms()) : std::nullopt;
  Say(absl::StrCat("request ", id, " came again: ", record->final() ? "its outcome is replayed" : "attached"));
  Wait(*record, {.call = event.call, .deadline = Deadline(now_, wait_ms), .replayed = true});
  return true;
}

UpdateRecord& CoordinatorState::AcceptUpdate(const Arrival& arrival, RequestPlan plan) {
  const TrainingRequest& request = *arrival.request;
  UpdateRecord record;
  record.id = request.header().request_id();
  record.digest = request.digest;
  record.lineage = lineage_;
  record.bytes = request.bytes;
  record.request = arrival.request;
  record.status.set_request_id(record.id);
  record.status.set_state(v1::ACCEPTED);
  record.status.set_steps_total(static_cast<uint32_t>(request.num_steps));
  record.status.set_lineage(lineage_);
  record.result.set_lineage(lineage_);
  *record.result.mutable_effective() = request.update;
  *record.result.mutable_plan() = plan.report;
  const v1::UpdateHeader& update = request.update;
  if (update.has_ppo_mini_batch_size() && request.groups.size() % update.ppo_mini_batch_size() != 0) {
    record.result.add_warnings(absl::StrCat("the last mini-batch of an epoch has ",
                                            request.groups.size() % update.ppo_mini_batch_size(), " groups instead of ",
                                            update.ppo_mini_batch_size()));
  }
  record.plan = std::move(plan);
  UpdateRecord& kept = table_.Insert(std::move(record));
  queue_.push_back(kept.id);
  Say(absl::StrCat("request ", kept.id, " accepted: ", request.groups.size(), " groups, ", request.num_rollouts,
                   " rollouts, ", kept.status.steps_total(), " steps, digest ", kept.digest.substr(0, 16)));
  const v1::RequestHeader& header = request.header();
  const std::optional<uint64_t> wait_ms = header.has_wait_ms() ? std::optional(header.wait_ms()) : std::nullopt;
  for (const Arrival::Sender& sender : arrival.senders) {
    Wait(kept, {.call = sender.call, .deadline = Deadline(now_, wait_ms), .replayed = sender.replayed});
  }
  for (const RequestWaiter& watcher : arrival.watchers) Wait(kept, watcher);
  return kept;
}

void CoordinatorState::Wait(UpdateRecord& record, RequestWaiter waiter) {
  if (record.final() || waiter.deadline <= now_) return AnswerWaiter(record, waiter);
  record.waiters.push_back(waiter);
}

void CoordinatorState::AnswerWaiter(const UpdateRecord& record, const RequestWaiter& waiter) {
  if (waiter.failure_is_error) {
    if (absl::Status failure = FailureOf(record); !failure.ok()) return Reply(waiter.call, failure);
  }
  v1::RequestStatus status = StatusOf(record);
  status.set_replayed(waiter.replayed);
  Reply(waiter.call, std::move(status));
}

absl::Status CoordinatorState::FailureOf(const UpdateRecord& record) const {
  return record.lost_step ? RolledBackError(record) : record.failure;
}

v1::RequestStatus CoordinatorState::StatusOf(const UpdateRecord& record) const {
  v1::RequestStatus status = record.status;
  if (record.lost_step) {
    status.set_state(v1::ROLLED_BACK);
    *status.mutable_failure() = ToFailure(RolledBackError(record));
  }
  const auto place = std::find(queue_.begin(), queue_.end(), record.id);
  if (place != queue_.end()) status.set_queue_position(static_cast<uint32_t>(place - queue_.begin()) + 1);
  return status;
}

void CoordinatorState::OnEvent(const GetRequestEvent& event) {
  const absl::Time deadline = now_ + event.wait.value_or(absl::ZeroDuration());
  const RequestWaiter waiter = {.call = event.call, .deadline = deadline, .failure_is_error = false};
  if (Arrival* arrival = FindArrival(event.request_id)) return Watch(*arrival, waiter);
  UpdateRecord* record = table_.Find(event.request_id);
  if (record == nullptr) return Reply(event.call, UnknownRequest(table_, event.request_id));
  Wait(*record, waiter);
}

void CoordinatorState::OnEvent(const CancelEvent& event) {
  if (Arrival* arrival = FindArrival(event.request_id)) return CancelArrival(*arrival, event.call);
  UpdateRecord* record = table_.Find(event.request_id);
  if (record == nullptr) return Reply(event.call, UnknownRequest(table_, event.request_id));
  Wait(*record, {.call = event.call, .failure_is_error = false});
  if (record->final()) return;
  if (!IsRunning(record->id)) return CancelUpdate(*record);
  if (running_->phase == Phase::kCommitted) {
    record->cancel_requested = true;  // the step stays; no other follows
    return;
  }
  AbortRunning();
  CancelUpdate(*record);
}

void CoordinatorState::OnEvent(const ReadResultsEvent& event) {
  UpdateRecord* record = table_.Find(event.request_id);
  const bool planning = FindArrival(event.request_id) != nullptr;
  if (record == nullptr && !planning) return Reply(event.call, UnknownRequest(table_, event.request_id));
  if (planning || !record->final()) {
    return Reply(event.call, MakeError(Reason::kRequestOpen, absl::StrCat("request ", event.request_id,
                                                                          " is not finished; wait with GetRequest")));
  }
  if (absl::Status failure = FailureOf(*record); !failure.ok()) return Reply(event.call, failure);
  if (record->results_dropped) {
    return Reply(event.call, MakeError(Reason::kRequestIdExpired,
                                       absl::StrCat("the log-probs of request ", record->id, " are no longer kept")));
  }
  if (record->status.has_result() && !record->status.result().effective().return_log_probs()) {
    return Reply(event.call, MakeError(Reason::kUnsupported,
                                       absl::StrCat("request ", record->id, " was sent without return_log_probs")));
  }
  for (const auto& chunk : record->results) decision_.actions.push_back(ChunkAction{event.call, chunk});
  Reply(event.call, absl::OkStatus());
}

void CoordinatorState::OnEvent(const ListRequestsEvent& event) {
  v1::ListRequestsResponse response;
  for (const UpdateRecord* record : table_.InOrder()) {
    v1::RequestStatus& status = *response.add_requests();
    status = StatusOf(*record);
    if (!status.has_result()) continue;
    v1::UpdateResult stripped;
    stripped.set_lineage(status.lineage());
    *stripped.mutable_metrics() = status.result().metrics();
    *status.mutable_result() = std::move(stripped);
  }
  Reply(event.call, std::move(response));
}

std::string CoordinatorState::ExportPath(const std::string& name) const {
  return absl::StrCat(options_.data_directory, "/exports/", name);
}

absl::Status CoordinatorState::ExportExistsError(const std::string& name) const {
  return MakeError(Reason::kExportExists,
                   absl::StrCat("an export named \"", name, "\" exists, or is being written: ", ExportPath(name),
                                " on the server's machine; choose another name, or remove it first"),
                   {.metadata = {{"name", name}}});
}

// True: an export of that name came before and is not answered yet.
bool CoordinatorState::ExportWaits(const std::string& name) const {
  const auto is_it = [&](const auto& job) { return job.request == nullptr && job.export_request.name() == name; };
  return std::any_of(arrivals_.begin(), arrivals_.end(), is_it) ||
         std::any_of(call_jobs_.begin(), call_jobs_.end(), [&](const auto& job) { return is_it(job.second); });
}

void CoordinatorState::OnEvent(const ExportEvent& event) {
  absl::Status admitted = CheckExport(event.request);
  if (admitted.ok() && event.request.has_expected_lineage()) {
    admitted = CheckLineage(event.request.expected_lineage());
  }
  if (admitted.ok()) admitted = NotServing();
  if (admitted.ok() && ExportWaits(event.request.name())) admitted = ExportExistsError(event.request.name());
  if (admitted.ok()) admitted = AdmitJob(0);
  if (!admitted.ok()) return Reply(event.call, admitted);
  Arrival arrival;
  arrival.export_request = event.request;
  arrival.senders.push_back({.call = event.call});
  Receive(std::move(arrival));
}

void CoordinatorState::OnEvent(const CallGoneEvent& event) {
  LeaveArrivals(event.call);
  for (UpdateRecord* record : table_.Open()) {
    std::erase_if(record->waiters, [&](const RequestWaiter& waiter) { return waiter.call == event.call; });
  }
  for (auto& [id, job] : call_jobs_) {
    if (job.call != event.call) continue;
    job.call = 0;
    if (job.request == nullptr) return;  // an export goes on: its files may be wanted
    if (IsRunning(id)) AbortRunning();
    return FinishCallJob(std::string(id), absl::CancelledError("the client left"));
  }
}

v1::ModelInfo::State CoordinatorState::ModelState() const {
  if (draining_) return v1::ModelInfo::DRAINING;
  if (!worker_ || !worker_->ready) return ever_ready_ ? v1::ModelInfo::RECOVERING : v1::ModelInfo::LOADING;
  if (!unusable_.empty()) return v1::ModelInfo::UNUSABLE;
  return running_ && !absl::StartsWith(running_->id, "~") ? v1::ModelInfo::STEPPING : v1::ModelInfo::IDLE;
}

void CoordinatorState::OnEvent(const GetModelEvent& event) {
  v1::ModelInfo info;
  info.set_state(ModelState());
  info.set_state_reason(unusable_);
  info.set_step(step_);
  info.set_weight_version(weight_version_);
  info.set_lineage(lineage_);
  info.set_model_type(options_.model.model_type);
  info.set_num_parameters(options_.model.num_parameters());
  info.set_vocab_size(options_.model.vocab_size);
  info.set_max_positions(options_.model.max_positions);
  Reply(event.call, std::move(info));
}

void CoordinatorState::OnEvent(const GetServerInfoEvent& event) {
  v1::ServerInfo info;
  info.set_version(options_.version);
  info.set_api("stemma.v1");
  for (std::string_view name : LossModeNames()) info.add_loss_modes(std::string(name));
  for (std::string_view name : AggModeNames()) info.add_loss_agg_modes(std::string(name));
  for (std::string_view name : KlTypeNames()) info.add_kl_loss_types(std::string(name));
  *info.mutable_config() = config_;
  info.set_workers_connected(worker_ ? 1 : 0);
  Reply(event.call, std::move(info));
}

}  // namespace stemma::server
