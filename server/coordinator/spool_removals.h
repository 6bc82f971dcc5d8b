// SpoolRemovals: removes spooled requests that are done with, beside the coordinator: neither their gigabytes nor a
// disk that hangs stop it. A thread of its own, so that no request's file waits for a checkpoint's, which may be on
// another disk, and whoever needs room may wait for it.
//
// Thread safety: safe. Nothing blocks but AwaitGone, StopBy and Stop.
// Invariants:
//  (1) files go one by one, in the order in which they were added. One that cannot be removed is logged, and stays.
//  (2) Stop ends behind the file that is being removed: the next start removes those that are left (Storage::Open).
//  (3) a removal that does not end is waited for once: what waits behind whoever needs room would wait again and again.
#pragma once

#include <cstdint>
#include <deque>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "server/coordinator/watched_thread.h"
#include "server/store/spool.h"

namespace stemma::server {

class SpoolRemovals {
 public:
  // `spool` outlives it.
  explicit SpoolRemovals(const Spool* spool);
  ~SpoolRemovals() { Stop(); }

  // REQUIRES: nobody writes a file of that name again.
  void Add(std::string name);
  // How many files are removed, or cannot be.
  uint64_t ended() const;
  // Waits until no file is left to remove, for that time at most, nor beyond Quit. Returns whether more have ended than
  // `before`: then there may be room that was not there when ended() was that.
  bool AwaitGone(uint64_t before, absl::Duration within);
  // Tells the thread to end.
  void Quit();
  // Quits, and waits for the thread until the deadline. Returns "", or what the disk has not ended: then the thread
  // goes on. Idempotent.
  std::string StopBy(StopDeadline deadline);
  void Stop() { StopBy(absl::InfiniteFuture()); }

 private:
  void Run();
  bool Next(std::string& name);  // false: stopped

  const Spool* const spool_;
  mutable Mutex mutex_;
  std::deque<std::string> names_ ABSL_GUARDED_BY(mutex_);  // the first one until it is gone
  uint64_t ended_ ABSL_GUARDED_BY(mutex_) = 0;
  bool hangs_ ABSL_GUARDED_BY(mutex_) = false;  // the first one, for which somebody has waited in vain
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  WatchedThread thread_;  // the last member: it uses the others
};

}  // namespace stemma::server
