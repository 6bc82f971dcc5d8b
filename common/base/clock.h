// The only reader of clocks, and the only place that sleeps. What decides by time takes it as an argument; what waits
// takes a Clock, so that tests fake it.
#pragma once

#include "absl/time/time.h"

namespace stemma {

// Thread safety: safe.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual absl::Time Now() const = 0;
  virtual double MonotonicSeconds() const = 0;  // since some moment; never goes back
  virtual void Sleep(absl::Duration duration) const = 0;
};

// The machine's; lives as long as the process.
const Clock& RealClock();

}  // namespace stemma
