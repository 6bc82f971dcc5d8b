// What an error code of CUDA says of the device, for code that reads no header of CUDA's. cuda_status.h holds the
// numbers against CUDA's own names.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>

namespace stemma::worker {

// cudaErrorMemoryAllocation: there is no memory, of the device or to be page-locked. It leaves the device as it was.
inline constexpr int32_t kDeviceMemoryAllocationError = 2;

// Calls that were refused, after which the device is as it was: cudaErrorInvalidValue, InvalidConfiguration,
// OperatingSystem (as of a driver that page-locks no more), LaunchOutOfResources, HostMemoryAlreadyRegistered,
// HostMemoryNotRegistered, NotPermitted and NotSupported. CUDA says of none that the process must be started anew.
inline constexpr int32_t kRefusedCalls[] = {1, 9, 304, 701, 712, 713, 800, 801};

constexpr bool IsRefusedCall(int32_t code) {
  return std::find(std::begin(kRefusedCalls), std::end(kRefusedCalls), code) != std::end(kRefusedCalls);
}

}  // namespace stemma::worker
