// A mutex with absl::Mutex's interface, on the standard library. Debian's Abseil is built without TSan, so the locks of
// absl::Mutex are invisible to it and every guarded access looks like a race; those of pthreads are not.
//
// Thread safety: safe. Every Unlock wakes whoever awaits a condition, which is then evaluated under the lock.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <mutex>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"

namespace stemma {

class ABSL_LOCKABLE Mutex {
 public:
  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mutex_.lock(); }
  void Unlock() ABSL_UNLOCK_FUNCTION() {
    if (waiting_ > 0) changed_.notify_all();
    mutex_.unlock();
  }

  // Returns with the lock held and the condition true.
  template <typename Condition>
  void Await(const Condition& condition) ABSL_EXCLUSIVE_LOCKS_REQUIRED(this) {
    AwaitWithTimeout(condition, absl::InfiniteDuration());
  }

  // The condition's value, the lock held; false: `timeout` passed.
  template <typename Condition>
  bool AwaitWithTimeout(const Condition& condition, absl::Duration timeout)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(this) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    if (waiting_ > 0) changed_.notify_all();  // what we changed before we wait
    std::unique_lock<std::mutex> lock(mutex_, std::adopt_lock);
    ++waiting_;
    bool met = true;
    if (timeout >= kForever) {
      changed_.wait(lock, condition);
    } else {
      met = changed_.wait_for(lock, absl::ToChronoNanoseconds(std::max(timeout, absl::ZeroDuration())), condition);
    }
    --waiting_;
    lock.release();  // stays locked
    return met;
  }

 private:
  static constexpr absl::Duration kForever = absl::Hours(24 * 365);  // more would overflow inside wait_for

  std::mutex mutex_;
  std::condition_variable changed_;
  int waiting_ ABSL_GUARDED_BY(this) = 0;
};

class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex* mutex) ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex) : mutex_(mutex) { mutex_->Lock(); }
  ~MutexLock() ABSL_UNLOCK_FUNCTION() { mutex_->Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex* const mutex_;
};

}  // namespace stemma
