// CheckpointThread: commits checkpoints, reads them back and removes their files, one after the other, beside the
// coordinator: gigabytes never stop it. Readings that clients ask for come last: a recovery, a save or a full disk does
// not wait for more than the one that is going on. A reading finds checkpoints of another model, too.
//
// Thread safety: safe. Nothing blocks but Stop, which ends a reading within 4 MiB, and waits for what else is done.
// Invariants:
//  (1) every added commit and reading is answered once by `done`, from this thread, or from that of Drop, unless the
//      thread was stopped.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <string>
#include <thread>
#include <variant>

#include "absl/base/thread_annotations.h"
#include "common/base/mutex.h"
#include "common/model/model_config.h"
#include "server/protocol/events.h"
#include "server/store/checkpoint_store.h"

namespace stemma::server {

// A folder whose files are to go.
struct AbandonedFolder {
  std::string folder;  // .tmp-...
};

class CheckpointThread {
 public:
  using Work = std::variant<CommitCheckpointAction, ReadCheckpointAction, AbandonedFolder>;

  // `store` outlives it.
  CheckpointThread(const CheckpointStore* store, ModelConfig model, std::function<void(Event)> done);
  ~CheckpointThread() { Stop(); }

  void Add(Work work);
  // Answers a client's reading by Cancelled, unless it was begun: then it goes on.
  void Drop(const DropReadingAction& action);
  // Idempotent.
  void Stop();

 private:
  void Run();
  bool Next(Work& work);  // false: stopped
  void Do(const CommitCheckpointAction& action);
  void Do(const ReadCheckpointAction& action);
  void Do(const AbandonedFolder& abandoned) { store_->Abandon(abandoned.folder); }

  const CheckpointStore* const store_;
  const ModelConfig model_;
  const std::function<void(Event)> done_;
  Mutex mutex_;
  std::deque<Work> works_ ABSL_GUARDED_BY(mutex_);
  std::deque<Work> client_readings_ ABSL_GUARDED_BY(mutex_);  // done when there is no other work
  std::atomic<bool> stopped_ = false;  // set under mutex_, which wakes the thread; a reading looks at it without
  std::thread thread_;
};

}  // namespace stemma::server
