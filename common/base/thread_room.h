// Whether the system lets this process start threads. One that cannot start those it needs would end in the middle of
// its start, or of its work, without a word of what to change.
#pragma once

#include <cstddef>

#include "absl/status/status.h"

namespace stemma {

// Starts so many threads and ends them again. Errors: FailedPrecondition - fewer could be started; names the limits
// that may be the cause.
absl::Status CheckThreadRoom(size_t count);

// Returns how many processors the machine has, whatever of them this process may use: gRPC starts threads by that, up
// to two of an executor for each, and at a server another.
size_t NumProcessors();

}  // namespace stemma
