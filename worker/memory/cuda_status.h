// CUDA's errors as absl::Status.
#pragma once

#include <cuda_runtime_api.h>

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "worker/memory/cuda_error_codes.h"

namespace stemma::worker {

static_assert(kDeviceMemoryAllocationError == cudaErrorMemoryAllocation);
static_assert(IsRefusedCall(cudaErrorInvalidValue) && IsRefusedCall(cudaErrorInvalidConfiguration) &&
              IsRefusedCall(cudaErrorOperatingSystem) && IsRefusedCall(cudaErrorLaunchOutOfResources) &&
              IsRefusedCall(cudaErrorHostMemoryAlreadyRegistered) && IsRefusedCall(cudaErrorHostMemoryNotRegistered) &&
              IsRefusedCall(cudaErrorNotPermitted) && IsRefusedCall(cudaErrorNotSupported));

// "cudaMalloc: cudaErrorMemoryAllocation, out of memory". ResourceExhausted - memory is missing. Internal - the call
// was refused, and the device is as it was. Unavailable - the device failed: every later call of this process fails,
// too.
inline absl::Status CudaStatus(cudaError_t error, std::string_view call) {
  if (error == cudaSuccess) return absl::OkStatus();
  (void)cudaGetLastError();  // it has been told, and is not that of the next launch
  const std::string text = std::string(call) + ": " + cudaGetErrorName(error) + ", " + cudaGetErrorString(error);
  if (error == cudaErrorMemoryAllocation) return absl::ResourceExhaustedError(text);
  return IsRefusedCall(error) ? absl::InternalError(text) : absl::UnavailableError(text);
}

}  // namespace stemma::worker
