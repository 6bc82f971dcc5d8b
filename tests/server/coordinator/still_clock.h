// A clock for tests that alone move it.
#pragma once

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"

namespace stemma::server {

// Stands still but where it is moved.
class StillClock final : public Clock {
 public:
  absl::Time Now() const override {
    MutexLock lock(&mutex_);
    return now_;
  }
  void Advance(absl::Duration duration) {
    MutexLock lock(&mutex_);
    now_ += duration;
    steady_ += duration;
  }
  void SetBack(absl::Duration duration) {
    MutexLock lock(&mutex_);
    now_ -= duration;
  }
  double MonotonicSeconds() const override {
    MutexLock lock(&mutex_);
    return absl::ToDoubleSeconds(steady_);
  }
  void Sleep(absl::Duration) const override {}

 private:
  mutable Mutex mutex_;
  absl::Time now_ ABSL_GUARDED_BY(mutex_) = absl::FromUnixSeconds(1'000'000);
  absl::Duration steady_ ABSL_GUARDED_BY(mutex_) = absl::Seconds(1000);
};

}  // namespace stemma::server
