// WatchedThread: a thread that tells what it does, so that a server that stops need not wait for a disk that hangs.
//
// Thread safety: safe; Doing is called from the thread itself.
#pragma once

#include <functional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/steady_time.h"

namespace stemma::server {

// How long to wait for threads: until a moment of SteadyNow(RealClock()), so that several share it.
using StopDeadline = absl::Time;
inline StopDeadline StopDeadlineIn(absl::Duration within) { return SteadyNow(RealClock()) + within; }

class WatchedThread {
 public:
  // Runs `run`, which tells what it does by Doing of this object; `doing` until it does. Whoever owns this ends `run`
  // in a way of its own before EndBy.
  WatchedThread(std::string doing, std::function<void()> run);
  ~WatchedThread() { EndBy(absl::InfiniteFuture()); }
  WatchedThread(const WatchedThread&) = delete;
  WatchedThread& operator=(const WatchedThread&) = delete;

  void Doing(std::string what);
  // Waits until the deadline for the end of `run`. Returns "", or what it does: then the thread goes on. Idempotent.
  std::string EndBy(StopDeadline deadline);

 private:
  Mutex mutex_;
  std::string doing_ ABSL_GUARDED_BY(mutex_);
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // the last member: it uses the others
};

}  // namespace stemma::server
