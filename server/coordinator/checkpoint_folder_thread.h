// CheckpointFolderThread: makes the folders of saves, and takes the names of checkpoints that are removed, beside the
// coordinator: a disk that hangs never stops it. Both are short, so that they have a thread of their own: a step waits
// for a save's folder, and must not wait for the reading of gigabytes. The files of what is removed are left to
// CheckpointThread.
//
// Thread safety: safe. Nothing blocks but Stop.
// Invariants:
//  (1) everything that was added is answered once by `done`, from this thread.
//  (2) Stop carries out what was added before it: the next server finds no checkpoint that the journal has dropped.
#pragma once

#include <deque>
#include <functional>
#include <thread>
#include <variant>

#include "absl/base/thread_annotations.h"
#include "common/base/mutex.h"
#include "server/coordinator/checkpoint_thread.h"
#include "server/protocol/events.h"
#include "server/store/checkpoint_store.h"

namespace stemma::server {

class CheckpointFolderThread {
 public:
  using Work = std::variant<MakeCheckpointFolderAction, RemoveCheckpointAction>;

  // `store` and `files` outlive it.
  CheckpointFolderThread(const CheckpointStore* store, CheckpointThread* files, std::function<void(Event)> done);
  ~CheckpointFolderThread() { Stop(); }

  void Add(Work work);
  // Idempotent.
  void Stop();

 private:
  void Run();
  bool Next(Work& work);  // false: stopped, and nothing is left to do
  void Do(const MakeCheckpointFolderAction& action);
  void Do(const RemoveCheckpointAction& action);

  const CheckpointStore* const store_;
  CheckpointThread* const files_;
  const std::function<void(Event)> done_;
  Mutex mutex_;
  std::deque<Work> works_ ABSL_GUARDED_BY(mutex_);
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace stemma::server
