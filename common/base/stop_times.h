// How long a server that was told to stop takes, which is what it promises and what `stemma local` waits for, and which
// signals are one stop.
#pragma once

#include "absl/time/time.h"

namespace stemma {

// For what runs to end its step, pass or export: the default of --drain-timeout. With kCloseWithin, kDiskWithin and the
// 2 s after which the library behind --metrics-listen leaves silent connections, it stays below the 30 seconds that
// service managers give a process by default.
inline constexpr absl::Duration kDrainWithin = absl::Seconds(20);

// For answers to reach their clients, after that.
inline constexpr absl::Duration kCloseWithin = absl::Seconds(5);

// For what the disk has to end, after that, as the removal of a checkpoint. Nothing that was answered waits for it.
inline constexpr absl::Duration kDiskWithin = absl::Seconds(2);

// Signals within so long are of one stop: a service manager may signal every process of a service, and `stemma local`
// passes on what it got besides.
inline constexpr double kSameStopS = 1;

}  // namespace stemma
