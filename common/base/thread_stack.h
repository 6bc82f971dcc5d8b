// The functions that another thread of this process is in: what is left to see of one that hangs.
#pragma once

#include <pthread.h>

#include <string>

#include "absl/time/time.h"

namespace stemma {

// Returns the thread's stack, a line for each call, the innermost first; "" where it does not answer a signal within
// that time, as in a system call that cannot be interrupted. The thread is interrupted for that. REQUIRES: the thread
// was not joined, and nobody else asks at the same time.
std::string StackOf(pthread_t thread, absl::Duration within);

}  // namespace stemma
