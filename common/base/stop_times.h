// How long a server that was told to stop takes: what it promises, and what `stemma local` waits for.
#pragma once

#include "absl/time/time.h"

namespace stemma {

// For what runs to end its step, pass or export: the default of --drain-timeout. With kCloseWithin it stays below the
// 30 seconds that service managers give a process by default.
inline constexpr absl::Duration kDrainWithin = absl::Seconds(20);

// For answers to reach their clients, after that.
inline constexpr absl::Duration kCloseWithin = absl::Seconds(5);

}  // namespace stemma
