// PageLock: what a machine with a GPU does to host memory that its copies reach, so that they run beside the
// computation and at the link's speed. HostArena gives it its one slab, once. On a CPU there is none.
#pragma once

#include <cstdint>

#include "absl/status/status.h"

namespace stemma::worker {

class PageLock {
 public:
  virtual ~PageLock() = default;

  // Errors: ResourceExhausted - the kernel locks no more; others as the device says. Then nothing is locked.
  virtual absl::Status Lock(void* begin, int64_t bytes) = 0;
  // Unlocks what Lock was given; no copy uses it any more. A failure here is a bug.
  virtual void Unlock(void* begin) = 0;
};

}  // namespace stemma::worker
