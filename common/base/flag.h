// A flag that is set once, and may be waited for. Unlike absl::Notification, whose deadlines are of the machine's clock
// and move with it, it waits by the monotonic clock.
//
// Thread safety: safe.
#pragma once

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"

namespace stemma {

class Flag {
 public:
  void Set() {
    MutexLock lock(&mutex_);
    set_ = true;
  }
  bool is_set() const {
    MutexLock lock(&mutex_);
    return set_;
  }
  // Whether it was set within that time.
  bool AwaitWithin(absl::Duration timeout) const {
    MutexLock lock(&mutex_);
    return mutex_.AwaitWithTimeout([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return set_; }, timeout);
  }

 private:
  mutable Mutex mutex_;
  bool set_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace stemma
