// CheckpointFolderThread: makes the folders of saves, takes the names of checkpoints and exports that are removed, and
// removes the files of what nobody needs any more, unfinished exports too, beside the coordinator: a disk that hangs
// never stops it. The coordinator has one for what saves wait for and one for removals, so that no save waits for a
// removal that the disk does not end.
//
// Thread safety: safe. Nothing blocks but StopBy and Stop.
// Invariants:
//  (1) every folder to be made, and every checkpoint or export to be removed, is answered once by `done`, from this
//      thread.
//  (2) files go when there is no other work: who deletes something waits for its name, not for others' gigabytes.
//  (3) Stop carries out what was added before it, but for files, which the next start removes: the next server finds no
//      checkpoint that the journal has dropped.
#pragma once

#include <deque>
#include <functional>
#include <string>
#include <variant>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "server/coordinator/watched_thread.h"
#include "server/protocol/events.h"
#include "server/store/checkpoint_store.h"

namespace stemma::server {

struct RemovePathWork {
  std::string path;  // what a process that ended left unfinished, or was an export
};

struct RemoveExportWork {
  CallId call = 0;
  std::string folder;  // of the exports
  std::string name;
};

class CheckpointFolderThread {
 public:
  using Work = std::variant<MakeCheckpointFolderAction, RemoveCheckpointAction, RemoveExportWork, DropSaveAction,
                            RemovePathWork>;

  // `store` outlives it.
  CheckpointFolderThread(const CheckpointStore* store, std::function<void(Event)> done);
  ~CheckpointFolderThread() { Stop(); }

  void Add(Work work);
  // Tells the thread to end.
  void Quit();
  // Quits, and waits for the thread until the deadline. Returns "", or what the disk has not ended: then the thread
  // goes on. Idempotent.
  std::string StopBy(StopDeadline deadline);
  void Stop() { StopBy(absl::InfiniteFuture()); }

 private:
  void Run();
  bool Next(Work& work);  // false: stopped, and nothing is left to do
  void Do(const MakeCheckpointFolderAction& action);
  void Do(const RemoveCheckpointAction& action);
  void Do(const RemoveExportWork& work);
  void Do(const DropSaveAction& action) { store_->Abandon(action.folder); }
  void Do(const RemovePathWork& work);

  const CheckpointStore* const store_;
  const std::function<void(Event)> done_;
  Mutex mutex_;
  std::deque<Work> works_ ABSL_GUARDED_BY(mutex_);
  std::deque<Work> files_ ABSL_GUARDED_BY(mutex_);  // to remove, when there is no other work
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  WatchedThread thread_;  // the last member: it uses the others
};

}  // namespace stemma::server
