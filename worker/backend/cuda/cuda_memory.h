// What LibTorch's caching allocator has given out on this process's one CUDA device, and what is still to be had.
// Entries of the backend's table.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>

#include "worker/memory/device_memory.h"
#include "worker/memory/memory_stats.h"

namespace stemma::worker::cuda {

// Names the device that the functions below speak of; once, before any of them.
void UseMemoryOf(at::Device device);

MemoryStats CudaMemoryStats();
void ResetCudaPeakBytes();

// Bytes as the driver and the allocator count them.
struct AllocatorBytes {
  int64_t driver_free = 0;     // not any process's
  int64_t reserved = 0;        // the allocator's, given out or not
  int64_t allocated = 0;       // given out
  int64_t inactive_split = 0;  // free pieces between given ones: no large tensor has room in them
};
// Bytes that the driver would still give, and those that the allocator keeps whole.
inline int64_t HeadroomOf(const AllocatorBytes& bytes) {
  return bytes.driver_free + bytes.reserved - bytes.allocated - bytes.inactive_split;
}
int64_t CudaFreeBytes();

DeviceMemory CudaMemory(at::Device device);

}  // namespace stemma::worker::cuda
