#include "server/coordinator/spool_removals.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/failpoint.h"
#include "glog/logging.h"

namespace stemma::server {

SpoolRemovals::SpoolRemovals(const Spool* spool) : spool_(spool), thread_("", [this] { Run(); }) {}

void SpoolRemovals::Add(std::string name) {
  MutexLock lock(&mutex_);
  names_.push_back(std::move(name));
}

uint64_t SpoolRemovals::ended() const {
  MutexLock lock(&mutex_);
  return ended_;
}

bool SpoolRemovals::AwaitGone(uint64_t before, absl::Duration within) {
  MutexLock lock(&mutex_);
  const uint64_t at_first = ended_;
  const bool gone = mutex_.AwaitWithTimeout(
      [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopped_ || hangs_ || names_.empty(); }, within);
  hangs_ |= !gone && ended_ == at_first;
  return ended_ > before;
}

void SpoolRemovals::Quit() {
  MutexLock lock(&mutex_);
  stopped_ = true;
}

std::string SpoolRemovals::StopBy(StopDeadline deadline) {
  Quit();
  return thread_.EndBy(deadline);
}

bool SpoolRemovals::Next(std::string& name) {
  MutexLock lock(&mutex_);
  mutex_.Await([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopped_ || !names_.empty(); });
  if (stopped_) return false;
  name = names_.front();
  thread_.Doing(absl::StrCat("removing spool/", name));
  return true;
}

void SpoolRemovals::Run() {
  std::string name;
  while (Next(name)) {
    Failpoint("spool.before_removal", /*rank=*/0);
    const absl::Status removed = spool_->Remove(name);
    LOG_IF(WARNING, !removed.ok()) << "a spooled request that is done with stays: " << removed.message();
    MutexLock lock(&mutex_);
    names_.pop_front();
    ++ended_;
    hangs_ = false;
  }
}

}  // namespace stemma::server
