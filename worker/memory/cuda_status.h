// CUDA's errors as absl::Status.
#pragma once

#include <cuda_runtime_api.h>

#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace stemma::worker {

// "cudaMalloc: cudaErrorMemoryAllocation, out of memory". ResourceExhausted where memory is missing, else Internal.
inline absl::Status CudaStatus(cudaError_t error, std::string_view call) {
  if (error == cudaSuccess) return absl::OkStatus();
  (void)cudaGetLastError();  // it has been told, and is not that of the next launch
  const std::string text = std::string(call) + ": " + cudaGetErrorName(error) + ", " + cudaGetErrorString(error);
  return error == cudaErrorMemoryAllocation ? absl::ResourceExhaustedError(text) : absl::InternalError(text);
}

}  // namespace stemma::worker
