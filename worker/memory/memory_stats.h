// What an allocator of tensors knows of its device.
#pragma once

#include <cstdint>

namespace stemma::worker {

struct MemoryStats {
  int64_t current_bytes = 0;  // in live tensors
  int64_t peak_bytes = 0;     // highest current since the last reset
  int64_t cached_bytes = 0;   // freed, kept for reuse
};

}  // namespace stemma::worker
