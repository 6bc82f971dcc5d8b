// Moments on the monotonic clock, for whatever measures how long something takes: they move evenly when someone sets
// the machine's clock. They are no time of day.
#pragma once

#include "absl/time/time.h"
#include "common/base/clock.h"

namespace stemma {

inline absl::Time SteadyNow(const Clock& clock) { return absl::UnixEpoch() + absl::Seconds(clock.MonotonicSeconds()); }

}  // namespace stemma
