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
// Bytes that the driver would still give, and those that the allocator keeps for reuse.
int64_t CudaFreeBytes();

DeviceMemory CudaMemory(at::Device device);

}  // namespace stemma::worker::cuda
