// CheckpointThread: commits checkpoints and reads them back, one after the other, beside the coordinator: gigabytes
// never stop it. Readings that clients ask for come last: a recovery or a save does not wait for more than the one that
// is going on. A reading finds checkpoints of another model, too.
//
// Thread safety: safe. Nothing blocks but StopBy and Stop. Quit ends a reading within 4 MiB; what else is done
// goes on to its end.
// Invariants:
//  (1) every added commit and reading is answered once by `done`, from this thread, or from that of Drop, unless the
//      thread was stopped.
//  (2) `done` hears of every kCheckpointProgressBytes that are read: who waits can tell a large checkpoint from a disk
//      that hangs.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <variant>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/model/model_config.h"
#include "server/coordinator/watched_thread.h"
#include "server/protocol/events.h"
#include "server/store/checkpoint_store.h"

namespace stemma::server {

class CheckpointThread {
 public:
  using Work = std::variant<CommitCheckpointAction, ReadCheckpointAction>;

  // `store` outlives it.
  CheckpointThread(const CheckpointStore* store, ModelConfig model, std::function<void(Event)> done);
  ~CheckpointThread() { Stop(); }

  void Add(Work work);
  // Answers a client's reading by Cancelled, unless it was begun: then it goes on.
  void Drop(const DropReadingAction& action);
  // Tells the thread to end.
  void Quit();
  // Quits, and waits for the thread until the deadline. Returns "", or what the disk has not ended: then the thread
  // goes on. Idempotent.
  std::string StopBy(StopDeadline deadline);
  void Stop() { StopBy(absl::InfiniteFuture()); }

 private:
  void Run();
  bool Next(Work& work);  // false: stopped
  void Do(const CommitCheckpointAction& action);
  void Do(const ReadCheckpointAction& action);
  bool GoesOn(uint64_t bytes);

  const CheckpointStore* const store_;
  const ModelConfig model_;
  const std::function<void(Event)> done_;
  Mutex mutex_;
  std::deque<Work> works_ ABSL_GUARDED_BY(mutex_);
  std::deque<Work> client_readings_ ABSL_GUARDED_BY(mutex_);  // done when there is no other work
  std::atomic<bool> stopped_ = false;  // set under mutex_, which wakes the thread; a reading looks at it without
  uint64_t unsaid_bytes_ = 0;          // of thread_: read since `done` heard of it last
  WatchedThread thread_;               // the last member: it uses the others
};

}  // namespace stemma::server
