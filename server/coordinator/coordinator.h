// Coordinator: the one thread that owns the CoordinatorState. Events come from any thread through a queue, in which at
// most kEventsMax stand when another call comes; the thread handles them one by one and executes the actions; plans are
// made by threads of their own (PlannerThreads), so that no request's size delays another's answer, and so is what
// checkpoints ask of the disk (CheckpointFolderThread, CheckpointThread), and the removal of spooled requests
// (SpoolRemovals). No gRPC here: sessions and calls are interfaces.
//
// Thread safety: every public method may be called from any thread; none of them blocks but WaitDrained, StopBy and
// Stop. Invariants:
//  (1) a call is answered exactly once, or never after CallGone.
//  (2) a session's next message is asked for (ReadNext) only after the one before was handled: at most one of each
//      session is in the queue.
//  (3) the state's clock is the time at which an event arrived in the queue, not the time at which it is handled. A
//      heartbeat that arrived in time counts as in time however long it waited, so a slow coordinator loses no worker.
//      A deadline's tick is handled before the first event that arrived after the deadline, so a flood of events delays
//      no deadline. The state hears the time of handling as well, and counts no silence while the coordinator itself
//      hung.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/steady_time.h"
#include "server/coordinator/checkpoint_folder_thread.h"
#include "server/coordinator/checkpoint_thread.h"
#include "server/coordinator/planner_threads.h"
#include "server/coordinator/storage.h"
#include "server/coordinator/watched_thread.h"
#include "server/protocol/coordinator_state.h"
#include "server/protocol/events.h"
#include "server/protocol/server_numbers.h"

namespace stemma::server {

// A worker's stream. Called by the coordinator thread; nothing here may block.
class WorkerLink {
 public:
  virtual ~WorkerLink() = default;
  virtual void Send(internal::v1::ServerMessage message) = 0;
  // Cut into chunks as the stream takes them.
  virtual void SendPayload(const std::string& id, std::shared_ptr<const TrainingRequest> request,
                           std::vector<uint32_t> groups) = 0;
  virtual void ReadNext() = 0;
  virtual void Close(const absl::Status& status) = 0;
};

// A client's call. Called by the coordinator thread; nothing here may block.
class ClientCall {
 public:
  virtual ~ClientCall() = default;
  virtual void OnChunk(std::shared_ptr<const v1::GroupResult> chunk) = 0;
  virtual void OnReply(Reply reply) = 0;  // the last thing that is called
};

class Coordinator {
 public:
  static constexpr size_t kEventsMax = 4096;

  // `on_readiness` is called by the coordinator thread. `storage` may be null: then nothing outlives the process.
  Coordinator(CoordinatorOptions options, PlanFunction plan, std::unique_ptr<Storage> storage, const Clock& clock,
              std::function<void(bool)> on_readiness);
  ~Coordinator();

  // Posts the event that `make_event` makes of the call's id. Once stopped answers it with DRAINING at once, with a
  // full queue with QUEUE_FULL: kEventsMax of those that change something, and as many of those that only read, whose
  // turn comes when no other event waits.
  CallId Call(std::shared_ptr<ClientCall> call, const std::function<Event(CallId)>& make_event);
  void CallGone(CallId call);

  SessionId OpenSession(std::shared_ptr<WorkerLink> link);
  void WorkerMessage(SessionId session, internal::v1::WorkerMessage message);
  void WorkerLost(SessionId session, const std::string& reason);

  // Calls `answer` from the coordinator's thread, in its turn among the events; never once that was stopped. The state
  // is not told, so that no time passes for it.
  void Ask(std::function<void()> answer);

  // Calls `take` likewise, with what may be read of the server.
  void AskNumbers(std::function<void(ServerNumbers)> take);

  // Refuses new work; what runs has so long to end its step, pass or export.
  void Drain(absl::Duration within);
  // False: nothing was drained within `timeout`.
  bool WaitDrained(absl::Duration timeout);
  // Ends the thread, and those beside it; calls that wait are dropped unanswered. Returns "", or what has not ended by
  // the deadline, as where the disk hangs: then its thread goes on. Idempotent.
  std::string StopBy(StopDeadline deadline);
  void Stop() { StopBy(absl::InfiniteFuture()); }

 private:
  struct Arrived {
    absl::Time at;  // SteadyNow
    Event event;
    std::function<void()> answer = nullptr;  // set: a question, and no event
  };
  struct Read {
    CallId call;
    Event event;
  };
  void Post(Event event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    events_.push_back({.at = SteadyNow(clock_), .event = std::move(event)});
  }
  template <typename Thread, typename... Arguments>
  std::unique_ptr<Thread> BesideIf(const Arguments&... arguments);
  void OnDone(Event event);         // of the threads beside this one
  absl::Status CheckPlace() const;  // before anything is written or removed in --data by its path
  void Run();
  bool NextEvent(Arrived& next);
  bool AwaitEvent(absl::Time deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TakeRead() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsOfClosedSession(const Event& event);
  // Looks where an export would go. Returns whether it is answered: its workers would write it, by the path of --data,
  // into another directory.
  bool AnswersExport(Event& event);
  Decision Decide(absl::Time now, const Event& event);
  void Execute(Decision decision);
  void Execute(SendAction& action);
  void Execute(SendPayloadAction& action);
  void Execute(PlanAction& action) { planners_.Add(std::move(action)); }
  void Execute(LoadAction& action) { planners_.Add(std::move(action)); }
  void Execute(RemoveSpoolAction& action);
  void Execute(JournalAction& action);
  void Execute(MakeCheckpointFolderAction& action) { folders_->Add(std::move(action)); }
  void Execute(CommitCheckpointAction& action) { checkpoints_->Add(std::move(action)); }
  void Execute(ReadCheckpointAction& action) { checkpoints_->Add(std::move(action)); }
  void Execute(DropReadingAction& action) { checkpoints_->Drop(action); }
  void Execute(RemoveCheckpointAction& action) { removals_->Add(std::move(action)); }
  void Execute(DropSaveAction& action) { removals_->Add(std::move(action)); }
  void Execute(RemoveUnfinishedExportsAction& action);
  void Execute(MakeExportFolderAction& action);
  void Execute(RemoveExportAction& action);
  void Execute(StopPlanAction& action) { planners_.Cancel(action.id); }
  void Execute(CloseSessionAction& action);
  void Execute(ReplyAction& action);
  void Execute(ChunkAction& action);
  void Execute(ReadinessAction& action);
  void Execute(SaveCalibrationAction& action);
  void Execute(IncidentAction& action);
  void Execute(DrainedAction& action);
  std::shared_ptr<WorkerLink> FindLink(SessionId session);
  std::shared_ptr<ClientCall> FindCall(CallId call, bool take);

  const Clock& clock_;
  const std::function<void(bool)> on_readiness_;
  const std::string data_directory_;  // empty: nothing is kept
  const ModelConfig model_;
  const std::unique_ptr<Storage> storage_;        // null: nothing is kept
  CoordinatorState state_;                        // of thread_
  absl::Time ticked_for_ = absl::InfinitePast();  // of thread_: the deadline of the tick that was the last event

  Mutex mutex_;
  std::deque<Arrived> events_ ABSL_GUARDED_BY(mutex_);
  // Calls that change nothing. Their turn comes where no event waits: however many ask, a step waits for one of them.
  std::deque<Read> reads_ ABSL_GUARDED_BY(mutex_);
  std::map<SessionId, std::shared_ptr<WorkerLink>> links_ ABSL_GUARDED_BY(mutex_);
  std::map<CallId, std::shared_ptr<ClientCall>> calls_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_id_ ABSL_GUARDED_BY(mutex_) = 1;
  bool drained_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  PlannerThreads planners_;
  std::unique_ptr<CheckpointThread> checkpoints_;     // null: nothing is kept
  std::unique_ptr<CheckpointFolderThread> folders_;   // of saves; null: nothing is kept
  std::unique_ptr<CheckpointFolderThread> removals_;  // null: nothing is kept
  WatchedThread thread_;                              // the last member: it uses the others
};

}  // namespace stemma::server
