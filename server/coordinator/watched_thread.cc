#include "server/coordinator/watched_thread.h"

#include <utility>

namespace stemma::server {

WatchedThread::WatchedThread(std::string doing, std::function<void()> run)
    : doing_(std::move(doing)), thread_([this, run = std::move(run)] {
        run();
        MutexLock lock(&mutex_);
        ended_ = true;
      }) {}

void WatchedThread::Doing(std::string what) {
  MutexLock lock(&mutex_);
  doing_ = std::move(what);
}

std::string WatchedThread::EndBy(StopDeadline deadline) {
  {
    MutexLock lock(&mutex_);
    const auto ended = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return ended_; };
    if (!mutex_.AwaitWithTimeout(ended, deadline - SteadyNow(RealClock()))) return doing_;
  }
  if (thread_.joinable()) thread_.join();
  return "";
}

}  // namespace stemma::server
