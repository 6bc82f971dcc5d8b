// Whether the system lets this process start threads. One that cannot start those it needs would end in the middle of
// its start, or of its work, without a word of what to change.
#pragma once

#include <cstddef>

#include "absl/status/status.h"

namespace stemma {

// Starts so many threads and ends them again. Errors: FailedPrecondition - fewer could be started; names the limits
// that may be the cause.
absl::Status CheckThreadRoom(size_t count);

}  // namespace stemma
