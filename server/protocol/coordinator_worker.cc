// The worker's coming and going, and what its loss means for requests and weights.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "glog/logging.h"
#include "server/planner/memory_division.h"
#include "server/protocol/coordinator_send.h"
#include "server/protocol/worker_messages.h"

namespace stemma::server {

void CoordinatorState::OnEvent(const WorkerMessageEvent& event) {
  const internal::v1::WorkerMessage& message = event.message;
  if (absl::Status status = CheckWorkerMessage(message); !status.ok()) return Breach(event.session, status);
  if (message.has_register_()) return OnRegister(event.session, message.register_());
  if (!worker_ || worker_->session != event.session) {
    return Breach(event.session, absl::InvalidArgumentError("its session does not begin with Register"));
  }
  worker_->silent_for = absl::ZeroDuration();
  switch (message.message_case()) {
    case internal::v1::WorkerMessage::kReady:
      return OnReady(message.ready());
    case internal::v1::WorkerMessage::kVote:
      return OnVote(message.vote());
    case internal::v1::WorkerMessage::kApplied:
      return OnApplied(message.applied());
    case internal::v1::WorkerMessage::kResults:
      return OnResultChunk(message.results());
    case internal::v1::WorkerMessage::kLogProbDone:
      return OnLogProbDone(message.log_prob_done());
    case internal::v1::WorkerMessage::kExportDone:
      return OnExportDone(message.export_done());
    case internal::v1::WorkerMessage::kRefused:
      return OnRefused(message.refused());
    case internal::v1::WorkerMessage::kHeartbeat:
      return OnHeartbeat(message.heartbeat());
    default:
      return;
  }
}

// Who is wrong about one message is not trusted with the next. Its step gets another attempt, as after a crash.
void CoordinatorState::Breach(SessionId session, const absl::Status& what) {
  decision_.actions.push_back(CloseSessionAction{session, what});
  const std::string reason = absl::StrCat("it broke the protocol: ", what.message());
  if (worker_ && worker_->session == session) return LoseWorker(reason);
  Say(absl::StrCat("the stream of a worker is closed: ", reason));
}

void CoordinatorState::OnRegister(SessionId session, const internal::v1::Register& message) {
  if (worker_ && worker_->session == session) {
    return Breach(session, absl::InvalidArgumentError("a second Register in one session"));
  }
  if (worker_ || draining_) {
    const char* why = worker_ ? "another worker is connected" : "the server drains";
    decision_.actions.push_back(CloseSessionAction{session, absl::FailedPreconditionError(why)});
    return Say(absl::StrCat("worker ", message.incarnation(), " refused: ", why));
  }
  const WorkerMemory memory = {static_cast<int64_t>(message.memory_free_bytes()),
                               static_cast<int64_t>(message.host_free_bytes()),
                               static_cast<int64_t>(message.memory_bytes())};
  absl::StatusOr<v1::RunConfig> divided = DivideMemory(options_.model, memory, options_.config);
  if (!divided.ok()) {
    decision_.actions.push_back(CloseSessionAction{session, divided.status()});
    return Say(absl::StrCat("worker ", message.incarnation(), " refused: ", divided.status().message()));
  }
  worker_ = Worker{.session = session,
                   .incarnation = message.incarnation(),
                   .device = message.device(),
                   .host = WorkerText(message.host()),
                   .pid = message.pid(),
                   .config = *std::move(divided),
                   .loading = Watch("loading the model", LoadSeconds(options_.model, options_.config.dtype()))};
  next_look_ = now_ + kLookEvery;
  internal::v1::Configure configure;
  configure.set_epoch(options_.epoch);
  configure.set_generation(++generation_);
  *configure.mutable_config() = worker_->config;
  configure.set_data_directory(options_.data_directory);
  configure.set_step(step_);
  SendToWorker(std::move(configure));
  Say(absl::StrCat("worker ", message.incarnation(), " on ", worker_->host, " pid ", message.pid(),
                   " joins generation ", generation_));
}

void CoordinatorState::OnReady(const internal::v1::Ready& message) {
  if (worker_->ready) return Breach(worker_->session, absl::InvalidArgumentError("a second Ready in one session"));
  worker_->ready = true;
  worker_->loading.reset();
  ever_ready_ = true;
  worker_missing_since_ = absl::InfiniteFuture();
  config_ = worker_->config;
  config_.set_threads(message.config().threads());
  StartCalibration();
  decision_.actions.push_back(ReadinessAction{true});
  RestartPlans();
  Say(absl::StrCat("worker ", worker_->incarnation, " is ready: step ", step_, " lineage ", lineage_, " budget ",
                   config_.memory_budget_bytes(), " bytes, state ", message.weights_bytes(), " bytes, free ",
                   message.memory_free_bytes(), " bytes, optimizer states ",
                   config_.optimizer_residency() == v1::HOST ? "in host memory" : "on the device"));
}

Calibration CoordinatorState::NewCalibration(const std::string& device) const {
  return Calibration(DefaultRates(config_.dtype(), config_.threads(), device, config_.optimizer_residency()),
                     options_.model);
}

void CoordinatorState::StartCalibration() {
  const std::string device = worker_->device.empty() ? "cpu" : worker_->device;
  calibration_key_ = CalibrationKey(options_.model, config_, device);
  calibration_ = NewCalibration(device);
  if (const auto it = calibration_book_.find(calibration_key_); it != calibration_book_.end()) {
    calibration_.AddAll(it->second);
  }
}

void CoordinatorState::SaveCalibration() {
  if (samples_unsaved_ == 0) return;
  samples_unsaved_ = 0;
  calibration_book_[calibration_key_] = calibration_.samples();
  decision_.actions.push_back(SaveCalibrationAction{calibration_book_});
}

void CoordinatorState::OnEvent(const WorkerLostEvent& event) {
  if (!worker_ || worker_->session != event.session) return;
  LoseWorker(event.reason);
}

void CoordinatorState::LoseWorker(const std::string& reason) {
  Say(absl::StrCat("worker ", worker_->incarnation, " (pid ", worker_->pid, " on ", worker_->host, ") left: ", reason));
  if (worker_->ready) decision_.actions.push_back(ReadinessAction{false});
  const bool had_weights = worker_->ready;
  SaveCalibration();
  worker_.reset();
  if (worker_missing_since_ == absl::InfiniteFuture()) worker_missing_since_ = now_;
  if (draining_) {
    return FailEverything(DrainingError(", and its worker was lost"));
  }
  const bool unusable = !std::exchange(unusable_, "").empty();
  if (had_weights && (step_ > 0 || unusable)) return LoseLineage();
  if (running_) RetryRunningStep(reason);
}

// The weights are those of the model directory still: the next worker has the same.
void CoordinatorState::RetryRunningStep(const std::string& reason) {
  const std::string id = running_->id;
  running_.reset();
  UpdateRecord* record = table_.Find(id);
  if (record == nullptr) {
    return FinishCallJob(id, MakeError(Reason::kAttemptsExhausted, absl::StrCat("the worker was lost: ", reason)));
  }
  if (record->cancel_requested) return CancelUpdate(*record);
  if (record->attempt >= options_.attempts_max) {
    record->resumable = true;
    return FinishUpdate(
        *record, v1::FAILED,
        MakeError(Reason::kAttemptsExhausted,
                  absl::StrCat("the worker was lost in each of ", record->attempt, " attempts, the last time: ", reason,
                               "; the weights did not change; the same request may be sent again")));
  }
  // From its first step: no weight has changed, and what the lost worker computed before it is gone.
  ++record->attempt;
  record->k = 0;
  record->results.clear();
  record->status.set_state(v1::ACCEPTED);
  record->result.clear_steps();
  queue_.push_front(id);
  Say(absl::StrCat("request ", id, ": attempt ", record->attempt, " waits for a worker"));
}

void CoordinatorState::FailEverything(const absl::Status& status) {
  EndArrivals(status);
  for (UpdateRecord* record : table_.Open()) {
    FinishUpdate(*record, v1::FAILED, status);
  }
  while (!call_jobs_.empty()) {
    const std::string id = call_jobs_.begin()->first;
    FinishCallJob(id, status);
  }
  CHECK(queue_.empty()) << queue_.front() << " is in the queue and not open";
}

void CoordinatorState::Drain(absl::Duration within) {
  if (draining_) return;
  draining_ = true;
  drain_deadline_ = now_ + within;
  decision_.actions.push_back(ReadinessAction{false});
  Say(absl::StrCat("draining: ", running_
                                     ? absl::StrCat("at most ", absl::FormatDuration(within), " for ", running_->id)
                                     : "nothing runs"));
  EndArrivals(DrainingError());
  for (UpdateRecord* record : table_.Open()) {
    if (!IsRunning(record->id)) FinishUpdate(*record, v1::FAILED, DrainingError());
  }
  std::vector<std::string> waiting;
  for (const auto& [id, job] : call_jobs_) {
    if (!IsRunning(id)) waiting.push_back(id);
  }
  for (const std::string& id : waiting) FinishCallJob(id, DrainingError());
}

// The time is over: what runs is dropped. A step that was committed may have been applied, to weights that end here.
void CoordinatorState::EndDrain() {
  Say("the time to drain is over");
  if (running_ && running_->phase != Phase::kCommitted) AbortRunning();
  FailEverything(DrainingError(", and what ran did not end in time"));
}

void CoordinatorState::FinishDrain() {
  if (drained_) return;
  drained_ = true;
  SaveCalibration();
  if (worker_) SendToWorker(internal::v1::Shutdown());
  decision_.actions.push_back(DrainedAction{});
  Say("drained");
}

// Lets the time since the last event pass for whom it is counted.
void CoordinatorState::Count() {
  const absl::Duration passed = counted_.Until(now_);
  next_look_ = worker_ ? std::min(next_look_, now_ + kLookEvery) : absl::InfiniteFuture();
  if (!worker_) return;
  worker_->silent_for += passed;
  if (worker_->loading) worker_->loading->Pass(passed);
  if (running_) running_->watch->Pass(passed);
}

void CoordinatorState::OnHeartbeat(const internal::v1::Heartbeat& heartbeat) {
  if (running_) running_->watch->Heard(heartbeat.progress(), WorkerText(heartbeat.phase()));
}

// "": nothing is known against the worker.
std::string CoordinatorState::WorkerProblem() const {
  if (worker_->silent_for >= options_.worker_lost_after) {
    return absl::StrCat("no heartbeat for ", absl::FormatDuration(options_.worker_lost_after));
  }
  if (worker_->loading) return worker_->loading->Problem();
  return running_ ? running_->watch->Problem() : "";
}

JobWatch CoordinatorState::Watch(const std::string& what, const JobSeconds& predicted) const {
  return {what, predicted, options_.worker_stalled_after};
}

void CoordinatorState::Tick() {
  if (now_ >= next_look_) next_look_ = now_ + kLookEvery;
  if (const std::string reason = worker_ ? WorkerProblem() : ""; !reason.empty()) {
    decision_.actions.push_back(CloseSessionAction{worker_->session, absl::DeadlineExceededError(reason)});
    LoseWorker(reason);
  }
  if (draining_ && !drained_ && now_ >= drain_deadline_) EndDrain();
  if (!draining_ && now_ - worker_missing_since_ >= options_.worker_return_within) {
    for (UpdateRecord* record : table_.Open()) record->resumable = true;
    FailEverything(MakeError(Reason::kAttemptsExhausted, "no worker came back; the weights did not change"));
  }
  AnswerDueWatchers();
  for (UpdateRecord* record : table_.Open()) {
    std::vector<RequestWaiter> due;
    std::erase_if(record->waiters, [&](const RequestWaiter& waiter) {
      if (waiter.deadline > now_) return false;
      due.push_back(waiter);
      return true;
    });
    for (const RequestWaiter& waiter : due) AnswerWaiter(*record, waiter);
  }
}

absl::Time CoordinatorState::NextDeadline() {
  absl::Time next = absl::InfiniteFuture();
  next = std::min(next, next_look_);
  const std::vector<UpdateRecord*> open = table_.Open();
  if (!open.empty() || !call_jobs_.empty() || !arrivals_.empty())
    next = std::min(next, worker_missing_since_ + options_.worker_return_within);
  if (draining_ && !drained_) next = std::min(next, drain_deadline_);
  for (const UpdateRecord* record : open) {
    for (const RequestWaiter& waiter : record->waiters) next = std::min(next, waiter.deadline);
  }
  for (const Arrival& arrival : arrivals_) {
    for (const RequestWaiter& watcher : arrival.watchers) next = std::min(next, watcher.deadline);
  }
  return next;
}

}  // namespace stemma::server
