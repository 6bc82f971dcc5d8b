// What every entry of the CUDA table needs to launch. Private to worker/backend/cuda.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/Exception.h>

#include <string>

namespace stemma::worker::cuda {

// Makes a tensor's device the current one, and gives the stream that LibTorch launches on there.
class Launching {
 public:
  explicit Launching(const at::Tensor& tensor) : guard_(tensor.device()) {}
  cudaStream_t stream() const { return c10::cuda::getCurrentCUDAStream().stream(); }

 private:
  c10::cuda::CUDAGuard guard_;
};

// Throws what LibTorch throws for an error of the device: a launch reports what work before it has done to the device.
inline void CheckLaunch(cudaError_t error, const char* kernel) {
  if (error == cudaSuccess) return;
  throw c10::AcceleratorError({__func__, __FILE__, __LINE__}, error,
                              std::string("launch of ") + kernel + ": " + cudaGetErrorString(error));
}

}  // namespace stemma::worker::cuda
