#include "worker/rpc/engine_thread.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "common/base/failpoint.h"
#include "common/base/rank_phase.h"
#include "common/base/step_key.h"
#include "common/base/thread_stack.h"
#include "glog/logging.h"

namespace stemma::worker {
namespace {

using internal::v1::ServerMessage;
using internal::v1::WorkerMessage;

constexpr absl::Duration kAnswersWithin = absl::Milliseconds(300);  // what waits for the worker's end kills it soon

// A step and a log-prob pass are told apart by their keys; a pass has an id only.
std::string PassText(const std::string& id) {
  internal::v1::StepKey key;
  key.set_request_id(id);
  return StepKeyText(key);
}

}  // namespace

EngineThread::EngineThread(WorkerIdentity identity, EngineFactory factory, std::function<void(WorkerMessage)> send,
                           std::function<void(const absl::Status&)> fail)
    : identity_(std::move(identity)), factory_(std::move(factory)), send_(std::move(send)), fail_(std::move(fail)) {
  heartbeat_.set_phase("idle");
  thread_ = std::thread([this] { Run(); });
}

EngineThread::~EngineThread() {
  CHECK(Stop(absl::InfiniteDuration()));
  thread_.join();
}

bool EngineThread::Stop(absl::Duration timeout) {
  MutexLock lock(&mutex_);
  stopping_ = true;
  const auto over = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return ended_ || generation_over_; };
  mutex_.AwaitWithTimeout(over, timeout);
  return ended_;
}

std::string EngineThread::Stack() { return StackOf(thread_.native_handle(), kAnswersWithin); }

void EngineThread::Post(ServerMessage message) {
  MutexLock lock(&mutex_);
  if (message.has_abort()) {
    aborted_.insert(StepKeyText(message.abort().key()));
  } else {
    const auto has_room = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return stopping_ || generation_over_ || messages_.size() < kMessagesMax;
    };
    mutex_.Await(has_room);
  }
  messages_.push_back(std::move(message));
}

bool EngineThread::Next(ServerMessage& message) {
  MutexLock lock(&mutex_);
  const auto awake = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || !messages_.empty(); };
  mutex_.Await(awake);
  if (stopping_) return false;
  heartbeat_.set_progress(heartbeat_.progress() + 1);
  message = std::move(messages_.front());
  messages_.pop_front();
  return true;
}

void EngineThread::Run() {
  ServerMessage message;
  while (Next(message)) {
    const absl::Status status = Dispatch(message);
    if (status.ok()) continue;
    LOG(WARNING) << "the generation is over: " << status.message();
    fail_(status);
    MutexLock lock(&mutex_);
    generation_over_ = true;
    return;
  }
  engine_.reset();  // where it was made
  MutexLock lock(&mutex_);
  ended_ = true;
}

absl::Status EngineThread::Dispatch(ServerMessage& message) {
  if (message.has_configure()) {
    Configure(message.configure());
    return absl::OkStatus();
  }
  if (engine_ == nullptr) {
    LOG(WARNING) << "ignored: a message before Configure";
    return absl::OkStatus();
  }
  switch (message.message_case()) {
    case ServerMessage::kPayload: {
      const std::string id = message.payload().id();
      const absl::Status status = engine_->AddPayload(std::move(*message.mutable_payload()));
      if (!status.ok()) LOG(ERROR) << "payload " << id << ": " << status.message();  // its Prepare will be refused
      return absl::OkStatus();
    }
    case ServerMessage::kDrop:
      engine_->DropPayload(message.drop().id());
      return absl::OkStatus();
    case ServerMessage::kPrepare:
      return Prepare(message.prepare());
    case ServerMessage::kApply:
      return Apply(message.apply());
    case ServerMessage::kAbort: {
      engine_->Abort(message.abort().key());
      MutexLock lock(&mutex_);
      aborted_.erase(StepKeyText(message.abort().key()));
      return absl::OkStatus();
    }
    case ServerMessage::kLogProb:
      return LogProb(message.log_prob());
    case ServerMessage::kVerify:
      return Verify(message.verify());
    case ServerMessage::kExport:
      return Export(message.export_());
    case ServerMessage::kSave:
      return Save(message.save());
    default:
      LOG(WARNING) << "ignored: a message of a kind that this worker does not know";
      return absl::OkStatus();
  }
}

void EngineThread::Configure(const internal::v1::Configure& configure) {
  CHECK(engine_ == nullptr) << "a second Configure";
  SetPhase(kLoadingPhase);
  rank_ = configure.rank();
  Failpoint("load.begun", rank_);
  const TellStore tell = [this](const internal::v1::StoreOpened& opened) {
    WorkerMessage message;
    *message.mutable_store_opened() = opened;
    send_(std::move(message));
  };
  absl::StatusOr<std::unique_ptr<Engine>> engine = factory_(configure, identity_, tell);
  if (!engine.ok()) return fail_(engine.status());
  engine_ = *std::move(engine);
  Failpoint("load.before_ready", rank_);
  SetPhase("idle");
  WorkerMessage message;
  *message.mutable_ready() = engine_->ready();
  send_(std::move(message));
}

absl::Status EngineThread::Prepare(const internal::v1::Prepare& prepare) {
  SetRunning(StepKeyText(prepare.key()), "prepare");
  absl::StatusOr<internal::v1::Vote> vote = engine_->Prepare(prepare, Hooks());
  SetRunning("", "idle");
  if (!vote.ok()) return Refuse(prepare.key(), vote.status());
  Failpoint("prepare.before_vote", rank_);
  WorkerMessage message;
  *message.mutable_vote() = *std::move(vote);
  send_(std::move(message));
  return absl::OkStatus();
}

absl::Status EngineThread::Apply(const internal::v1::Apply& apply) {
  SetPhase("apply");
  absl::StatusOr<internal::v1::Applied> applied = engine_->Apply(apply);
  SetPhase("idle");
  if (!applied.ok()) return Refuse(apply.key(), applied.status());
  Failpoint("apply.before_answer", rank_);
  WorkerMessage message;
  *message.mutable_applied() = *std::move(applied);
  send_(std::move(message));
  return absl::OkStatus();
}

absl::Status EngineThread::LogProb(const internal::v1::LogProb& log_prob) {
  SetRunning(PassText(log_prob.id()), "log_prob");
  absl::Status status = engine_->LogProb(log_prob, Hooks());
  SetRunning("", "idle");
  if (absl::IsUnavailable(status)) return status;
  Failpoint("log_prob.before_answer", rank_);
  WorkerMessage message;
  message.mutable_log_prob_done()->set_id(log_prob.id());
  if (!status.ok()) *message.mutable_log_prob_done()->mutable_failure() = ToFailure(status);
  send_(std::move(message));
  return absl::OkStatus();
}

absl::Status EngineThread::Verify(const internal::v1::Verify& verify) {
  SetRunning(PassText(verify.id()), "verify");
  absl::StatusOr<internal::v1::VerifyDone> done = engine_->Verify(verify, Hooks());
  SetRunning("", "idle");
  if (absl::IsUnavailable(done.status())) return done.status();
  Failpoint("verify.before_answer", rank_);
  WorkerMessage message;
  if (done.ok()) {
    *message.mutable_verify_done() = *std::move(done);
  } else {
    message.mutable_verify_done()->set_id(verify.id());
    *message.mutable_verify_done()->mutable_failure() = ToFailure(done.status());
  }
  send_(std::move(message));
  return absl::OkStatus();
}

absl::Status EngineThread::Export(const internal::v1::Export& request) {
  SetPhase("export");
  const absl::StatusOr<uint64_t> bytes = engine_->Export(request);
  SetPhase("idle");
  if (absl::IsUnavailable(bytes.status())) return bytes.status();
  Failpoint("export.before_answer", rank_);
  WorkerMessage message;
  message.mutable_export_done()->set_id(request.id());
  if (bytes.ok()) {
    message.mutable_export_done()->set_bytes(*bytes);
  } else {
    *message.mutable_export_done()->mutable_failure() = ToFailure(bytes.status());
  }
  send_(std::move(message));
  return absl::OkStatus();
}

absl::Status EngineThread::Save(const internal::v1::Save& request) {
  SaveAnswers answers;
  answers.staged = [this](internal::v1::SaveStaged staged) {
    WorkerMessage message;
    *message.mutable_save_staged() = std::move(staged);
    send_(std::move(message));
  };
  answers.done = [this](internal::v1::SaveDone done) {
    WorkerMessage message;
    *message.mutable_save_done() = std::move(done);
    send_(std::move(message));
  };
  SetPhase("checkpoint");
  absl::Status status = engine_->Save(request, answers);
  SetPhase("idle");
  if (status.ok() || absl::IsUnavailable(status)) return status;
  internal::v1::SaveStaged failed;
  failed.set_id(request.id());
  *failed.mutable_failure() = ToFailure(status);
  answers.staged(std::move(failed));
  return absl::OkStatus();
}

absl::Status EngineThread::Refuse(const internal::v1::StepKey& key, const absl::Status& status) {
  if (absl::IsUnavailable(status)) return status;
  LOG(ERROR) << "refused: " << status.message();
  WorkerMessage message;
  *message.mutable_refused()->mutable_key() = key;
  message.mutable_refused()->set_message(std::string(status.message()));
  send_(std::move(message));
  return absl::OkStatus();
}

EngineHooks EngineThread::Hooks() {
  EngineHooks hooks;
  hooks.cancelled = [this] { return IsCancelled(); };
  hooks.progress = [this](const internal::v1::Heartbeat& heartbeat) {
    Failpoint(absl::StrCat("pass.", heartbeat.phase()), rank_);
    MutexLock lock(&mutex_);
    heartbeat_.set_phase(heartbeat.phase());
    heartbeat_.set_progress(heartbeat_.progress() + 1);
  };
  hooks.results = [this](internal::v1::ResultChunk chunk) {
    WorkerMessage message;
    *message.mutable_results() = std::move(chunk);
    send_(std::move(message));
  };
  return hooks;
}

void EngineThread::SetRunning(const std::string& what, const std::string& phase) {
  MutexLock lock(&mutex_);
  running_ = what;
  heartbeat_.set_phase(phase);
}

bool EngineThread::IsCancelled() {
  MutexLock lock(&mutex_);
  return stopping_ || aborted_.contains(running_);
}

void EngineThread::SetPhase(const std::string& phase) {
  MutexLock lock(&mutex_);
  heartbeat_.set_phase(phase);
}

internal::v1::Heartbeat EngineThread::Heartbeat() {
  MutexLock lock(&mutex_);
  return heartbeat_;
}

}  // namespace stemma::worker
