#include "server/coordinator/coordinator.h"

#include <filesystem>
#include <functional>
#include <optional>
#include <system_error>
#include <utility>
#include <variant>

#include "common/base/error.h"
#include "common/base/failpoint.h"
#include "common/base/names.h"
#include "glog/logging.h"
#include "server/coordinator/calibration_file.h"
#include "server/coordinator/incident_files.h"
#include "server/coordinator/logged_reasons.h"
#include "server/coordinator/lost_messages.h"
#include "server/coordinator/unfinished_files.h"
#include "server/protocol/answers.h"

namespace stemma::server {

namespace {

template <typename... Reads>
bool HoldsOneOf(const Event& event) {
  return (std::holds_alternative<Reads>(event) || ...);
}

bool IsRead(const Event& event) {
  return HoldsOneOf<GetServerInfoEvent, GetModelEvent, GetRequestEvent, ListRequestsEvent, ListCheckpointsEvent>(event);
}

}  // namespace

Coordinator::Coordinator(CoordinatorOptions options, PlanFunction plan, std::unique_ptr<Storage> storage,
                         const Clock& clock, std::function<void(bool)> on_readiness)
    : clock_(clock),
      on_readiness_(std::move(on_readiness)),
      data_directory_(options.data_directory),
      model_(options.model),
      storage_(std::move(storage)),
      state_(std::move(options)),
      planners_(std::move(plan), storage_.get(), std::bind_front(&Coordinator::OnDone, this)),
      checkpoints_(BesideIf<CheckpointThread>(model_)),
      folders_(BesideIf<CheckpointFolderThread>()),
      removals_(BesideIf<CheckpointFolderThread>()),
      thread_("deciding, and writing what it decides", [this] { Run(); }) {}

// A thread of checkpoints; null where nothing is kept.
template <typename Thread, typename... Arguments>
std::unique_ptr<Thread> Coordinator::BesideIf(const Arguments&... arguments) {
  if (storage_ == nullptr) return nullptr;
  return std::make_unique<Thread>(&storage_->checkpoints(), arguments..., std::bind_front(&Coordinator::OnDone, this));
}

Coordinator::~Coordinator() { Stop(); }

std::string Coordinator::StopBy(StopDeadline deadline) {
  {
    MutexLock lock(&mutex_);
    stopped_ = true;
  }
  if (std::string goes_on = thread_.EndBy(deadline); !goes_on.empty()) return goes_on;  // it may give the others work
  planners_.Quit();
  if (storage_ != nullptr) {
    storage_->Quit();  // a plan may wait for it
    folders_->Quit();
    removals_->Quit();
    checkpoints_->Quit();
  }
  if (std::string goes_on = planners_.StopBy(deadline); !goes_on.empty() || storage_ == nullptr) return goes_on;
  if (std::string goes_on = storage_->StopBy(deadline); !goes_on.empty()) return goes_on;
  if (std::string goes_on = folders_->StopBy(deadline); !goes_on.empty()) return goes_on;
  if (std::string goes_on = removals_->StopBy(deadline); !goes_on.empty()) return goes_on;
  return checkpoints_->StopBy(deadline);
}

CallId Coordinator::Call(std::shared_ptr<ClientCall> call, const std::function<Event(CallId)>& make_event) {
  bool stopped = false;
  {
    MutexLock lock(&mutex_);
    stopped = stopped_;
    const CallId id = next_id_++;
    Event event = make_event(id);
    const bool reads = IsRead(event);
    if (!stopped && (reads ? reads_.size() : events_.size()) < kEventsMax) {
      calls_[id] = std::move(call);
      reads ? reads_.push_back({id, std::move(event)}) : Post(std::move(event));
      return id;
    }
  }
  call->OnReply(stopped ? DrainingError() : MakeError(Reason::kQueueFull, "too many calls wait for the coordinator"));
  return 0;
}

void Coordinator::CallGone(CallId call) {
  MutexLock lock(&mutex_);
  if (calls_.erase(call) > 0) Post(CallGoneEvent{call});
}

SessionId Coordinator::OpenSession(std::shared_ptr<WorkerLink> link) {
  MutexLock lock(&mutex_);
  const SessionId id = next_id_++;
  links_[id] = std::move(link);
  return id;
}

void Coordinator::WorkerMessage(SessionId session, internal::v1::WorkerMessage message) {
  MutexLock lock(&mutex_);
  Post(WorkerMessageEvent{session, std::move(message)});
}

void Coordinator::WorkerLost(SessionId session, const std::string& reason) {
  MutexLock lock(&mutex_);
  if (links_.erase(session) > 0) Post(WorkerLostEvent{session, reason});
}

void Coordinator::Ask(std::function<void()> answer) {
  MutexLock lock(&mutex_);
  events_.push_back({.at = SteadyNow(clock_), .event = {}, .answer = std::move(answer)});
}

void Coordinator::AskNumbers(std::function<void(ServerNumbers)> take) {
  Ask([this, take = std::move(take)] { take(state_.Numbers()); });
}

void Coordinator::OnDone(Event event) {
  MutexLock lock(&mutex_);
  Post(std::move(event));
}

void Coordinator::Drain(absl::Duration within) {
  MutexLock lock(&mutex_);
  Post(DrainEvent{within});
}

bool Coordinator::WaitDrained(absl::Duration timeout) {
  MutexLock lock(&mutex_);
  return mutex_.AwaitWithTimeout([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return drained_; }, timeout);
}

// Makes an event of the first read whose client is still there.
void Coordinator::TakeRead() {
  for (; events_.empty() && !reads_.empty(); reads_.pop_front()) {
    if (calls_.contains(reads_.front().call)) Post(std::move(reads_.front().event));
  }
}

// Returns when an event is there, or the deadline. False: stopped.
bool Coordinator::AwaitEvent(absl::Time deadline) {
  const auto awake = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stopped_ || !events_.empty() || !reads_.empty();
  };
  bool is_awake = true;
  while (is_awake && !stopped_ && events_.empty()) {
    is_awake = mutex_.AwaitWithTimeout(awake, deadline - SteadyNow(clock_));
    TakeRead();
  }
  return !stopped_;
}

// False: stopped. A tick that leaves its deadline where it was lets one event pass: no deadline stops the events.
bool Coordinator::NextEvent(Arrived& next) {
  const absl::Time deadline = state_.NextDeadline();
  MutexLock lock(&mutex_);
  if (!AwaitEvent(deadline)) return false;
  if (!events_.empty() && events_.front().answer != nullptr) {  // no deadline comes with it
    next = std::move(events_.front());
    events_.pop_front();
    return true;
  }
  const bool due = events_.empty() || (deadline <= events_.front().at && deadline != ticked_for_);
  if (due) {
    next = {events_.empty() ? SteadyNow(clock_) : events_.front().at, TickEvent{}};
    ticked_for_ = deadline;
  } else {
    next = std::move(events_.front());
    events_.pop_front();
    ticked_for_ = absl::InfinitePast();
  }
  return true;
}

// What came of a session before it was closed is not heard: its worker has been told, or is lost.
bool Coordinator::IsOfClosedSession(const Event& event) {
  const auto* message = std::get_if<WorkerMessageEvent>(&event);
  return message != nullptr && FindLink(message->session) == nullptr;
}

bool Coordinator::AnswersExport(Event& event) {
  auto* exports = std::get_if<ExportEvent>(&event);
  if (exports == nullptr) return false;
  const absl::Status place = CheckPlace();
  const std::string& name = exports->request.name();
  std::error_code error;
  exports->name_is_free =
      CheckFileName(name).ok() && std::filesystem::symlink_status(ExportPath(data_directory_, name), error).type() ==
                                      std::filesystem::file_type::not_found;
  if (place.ok()) return false;
  ReplyAction reply = {exports->call, place};
  Execute(reply);
  return true;
}

Decision Coordinator::Decide(absl::Time now, const Event& event) {
  const auto free_bytes = [this] { return storage_ == nullptr ? std::nullopt : storage_->FreeBytes(); };
  return state_.Handle(now, event, free_bytes, {.handled_at = SteadyNow(clock_), .time_of_day = clock_.Now()});
}

void Coordinator::Run() {
  Execute(Decide(SteadyNow(clock_), StartEvent{}));
  Arrived next;
  while (NextEvent(next)) {
    if (next.answer != nullptr) {
      next.answer();
      continue;
    }
    if (IsOfClosedSession(next.event) || AnswersExport(next.event)) continue;
    const auto* message = std::get_if<WorkerMessageEvent>(&next.event);
    if (message == nullptr || !IsLost(message->message)) Execute(Decide(next.at, next.event));
    if (message == nullptr) continue;
    if (const auto link = FindLink(message->session)) link->ReadNext();
  }
}

void Coordinator::Execute(Decision decision) {
  for (const LoggedReason& reason : decision.reasons) Log(reason);
  for (Action& action : decision.actions) {
    std::visit([this](auto& a) { Execute(a); }, action);
  }
}

void Coordinator::Execute(SendAction& action) {
  const auto link = FindLink(action.session);
  if (link != nullptr && !IsLost(action.message)) link->Send(std::move(action.message));
}

void Coordinator::Execute(SendPayloadAction& action) {
  const auto link = FindLink(action.session);
  if (link != nullptr) link->SendPayload(action.id, std::move(action.request), std::move(action.groups));
}

void Coordinator::Execute(CloseSessionAction& action) {
  const auto link = FindLink(action.session);
  if (link == nullptr) return;
  {
    MutexLock lock(&mutex_);
    links_.erase(action.session);
  }
  link->Close(action.status);
}

void Coordinator::Execute(ReplyAction& action) {
  Failpoint("reply.before", /*rank=*/0);
  if (const auto call = FindCall(action.call, /*take=*/true)) call->OnReply(std::move(action.reply));
}

void Coordinator::Execute(ChunkAction& action) {
  if (const auto call = FindCall(action.call, /*take=*/false)) call->OnChunk(std::move(action.chunk));
}

void Coordinator::Execute(ReadinessAction& action) { on_readiness_(action.ready); }

void Coordinator::Execute(SaveCalibrationAction& action) {
  if (data_directory_.empty()) return;
  absl::Status status = CheckPlace();
  if (status.ok()) status = WriteCalibration(data_directory_, action.book);
  if (!status.ok()) LOG(WARNING) << "the calibration is not kept: " << status.message();
}

void Coordinator::Execute(IncidentAction& action) {
  if (data_directory_.empty()) return;
  const absl::Status place = CheckPlace();
  if (place.ok()) WriteIncident(data_directory_, action.incident);
  LOG_IF(WARNING, !place.ok()) << "an incident is not kept: " << place.message();
}

void Coordinator::Execute(RemoveSpoolAction& action) {
  if (storage_ != nullptr) storage_->Remove(std::move(action.name));
}

void Coordinator::Execute(RemoveUnfinishedExportsAction&) {
  if (removals_ == nullptr || !CheckPlace().ok()) return;
  for (const std::string& path : UnfinishedExports(data_directory_)) {
    std::string taken = TakeFromItsWriters(path);
    if (!taken.empty()) removals_->Add(RemovePathWork{std::move(taken)});
  }
}

void Coordinator::Execute(MakeExportFolderAction& action) {
  if (data_directory_.empty()) return;
  absl::Status made = CheckPlace();
  if (made.ok()) made = MakeExportFolder(data_directory_, action.folder);
  if (!made.ok()) OnDone(ExportFolderEvent{std::move(action.id), made});
}

void Coordinator::Execute(RemoveExportAction& action) {
  if (removals_ == nullptr) {
    return OnDone(ExportRemovedEvent{action.call, action.name, absl::NotFoundError("nothing is kept")});
  }
  if (const absl::Status place = CheckPlace(); !place.ok()) {
    return OnDone(ExportRemovedEvent{action.call, action.name, place});
  }
  removals_->Add(RemoveExportWork{action.call, ExportsFolder(data_directory_), std::move(action.name)});
}

void Coordinator::Execute(JournalAction& action) {
  if (storage_ != nullptr) storage_->Append(action);
}

void Coordinator::Execute(DrainedAction&) {
  MutexLock lock(&mutex_);
  drained_ = true;
}

absl::Status Coordinator::CheckPlace() const { return storage_ == nullptr ? absl::OkStatus() : storage_->CheckPlace(); }

std::shared_ptr<WorkerLink> Coordinator::FindLink(SessionId session) {
  MutexLock lock(&mutex_);
  const auto it = links_.find(session);
  return it == links_.end() ? nullptr : it->second;
}

std::shared_ptr<ClientCall> Coordinator::FindCall(CallId call, bool take) {
  MutexLock lock(&mutex_);
  const auto it = calls_.find(call);
  if (it == calls_.end()) return nullptr;
  std::shared_ptr<ClientCall> found = it->second;
  if (take) calls_.erase(it);
  return found;
}

}  // namespace stemma::server
