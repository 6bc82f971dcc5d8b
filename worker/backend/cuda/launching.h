// What every entry of the CUDA table needs to launch. Private to worker/backend/cuda.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/Exception.h>

namespace stemma::worker::cuda {

// Makes a tensor's device the current one, and gives the stream that LibTorch launches on there.
class Launching {
 public:
  explicit Launching(const at::Tensor& tensor) : guard_(tensor.device()) {}
  cudaStream_t stream() const { return c10::cuda::getCurrentCUDAStream().stream(); }

 private:
  c10::cuda::CUDAGuard guard_;
};

inline void CheckLaunch(cudaError_t error, const char* kernel) {
  TORCH_CHECK(error == cudaSuccess, "launch of ", kernel, ": ", cudaGetErrorString(error));
}

}  // namespace stemma::worker::cuda
