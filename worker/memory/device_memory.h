// How much memory a device has, as a worker tells its server. Free of LibTorch.
#pragma once

#include <cstdint>

#include "common/base/system_memory.h"

namespace stemma::worker {

struct DeviceMemory {
  int64_t bytes = 0, free_bytes = 0;
  bool is_host = true;  // the host's, too
};

// Returns a CPU's.
inline DeviceMemory HostMemory() { return {MachineMemoryBytes(), AvailableMemoryBytes(), /*is_host=*/true}; }

}  // namespace stemma::worker
