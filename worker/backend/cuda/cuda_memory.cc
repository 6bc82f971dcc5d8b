#include "worker/backend/cuda/cuda_memory.h"

#include <c10/cuda/CUDACachingAllocator.h>

#include <cstddef>
#include <utility>

namespace stemma::worker::cuda {
namespace {

using c10::cuda::CUDACachingAllocator::getDeviceStats;
constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);

c10::DeviceIndex device_index = -1;

}  // namespace

void UseMemoryOf(at::Device device) { device_index = device.index(); }

MemoryStats CudaMemoryStats() {
  const auto stats = getDeviceStats(device_index);
  const int64_t current = stats.allocated_bytes[kAll].current;
  return {current, stats.allocated_bytes[kAll].peak, stats.reserved_bytes[kAll].current - current};
}

void ResetCudaPeakBytes() { c10::cuda::CUDACachingAllocator::resetPeakStats(device_index); }

int64_t CudaFreeBytes() {
  const auto stats = getDeviceStats(device_index);
  return HeadroomOf({.driver_free = CudaMemory(at::Device(at::kCUDA, device_index)).free_bytes,
                     .reserved = stats.reserved_bytes[kAll].current,
                     .allocated = stats.allocated_bytes[kAll].current,
                     .inactive_split = stats.inactive_split_bytes[kAll].current});
}

DeviceMemory CudaMemory(at::Device device) {
  const std::pair<size_t, size_t> free_and_all = c10::cuda::CUDACachingAllocator::get()->getMemoryInfo(device.index());
  return {static_cast<int64_t>(free_and_all.second), static_cast<int64_t>(free_and_all.first), /*is_host=*/false};
}

}  // namespace stemma::worker::cuda
