// The library's one function: opens a CUDA device for stemma-worker (worker/backend/device.h).
#include <ATen/cuda/CUDAContext.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <cublas_api.h>
#include <cuda_runtime_api.h>
#include <torch/headeronly/version.h>

#include <fstream>
#include <memory>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "worker/backend/build_id.h"
#include "worker/backend/cuda/cuda_backend.h"
#include "worker/backend/cuda/cuda_memory.h"
#include "worker/backend/device.h"
#include "worker/parallel/nccl_transport.h"
#include "worker/parallel/transport.h"

namespace stemma::worker::cuda {
namespace {

// Returns the CUDA level of the driver and, where the system tells it, the driver's own version: drivers of one level
// differ.
std::string DriverVersion() {
  int level = 0;
  C10_CUDA_CHECK(cudaDriverGetVersion(&level));
  std::string module;
  std::getline(std::ifstream("/proc/driver/nvidia/version"), module);
  return module.empty() ? absl::StrCat(level) : absl::StrCat(level, ", ", module);
}

std::string CublasVersion() {
  int major = 0, minor = 0, patch = 0;
  TORCH_CUDABLAS_CHECK(cublasGetProperty(MAJOR_VERSION, &major));
  TORCH_CUDABLAS_CHECK(cublasGetProperty(MINOR_VERSION, &minor));
  TORCH_CUDABLAS_CHECK(cublasGetProperty(PATCH_LEVEL, &patch));
  return absl::StrCat(major, ".", minor, ".", patch);
}

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(int index) : device_(at::kCUDA, static_cast<at::DeviceIndex>(index)) {}

  DeviceIdentity identity() const override {
    const cudaDeviceProp& properties = *at::cuda::getDeviceProperties(device_.index());
    int runtime = 0;
    C10_CUDA_CHECK(cudaRuntimeGetVersion(&runtime));
    return {.name = properties.name,
            .compute_capability = absl::StrCat(properties.major, ".", properties.minor),
            .driver = DriverVersion(),
            .runtime = absl::StrCat(runtime),
            .torch = TORCH_VERSION,
            .cublas = CublasVersion(),
            .cudnn = absl::StrCat(at::detail::getCUDAHooks().versionRuntimeCuDNN()),
            .build_id = OwnBuildId()};
  }
  std::string id() const override {
    const cudaUUID_t& uuid = at::cuda::getDeviceProperties(device_.index())->uuid;
    return absl::BytesToHexString(absl::string_view(uuid.bytes, sizeof(uuid.bytes)));
  }
  DeviceMemory memory() const override { return CudaMemory(device_); }
  Backend MakeBackend(const BackendRequest& request) const override { return MakeCudaBackend(device_, request); }
  absl::StatusOr<std::shared_ptr<const Transport>> MakeTransport() const override {
    return MakeNcclTransport(device_.index());
  }

 private:
  const at::Device device_;
};

// Says why device `index` cannot be used; ok where it can.
absl::Status CheckDevice(int index) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) {
    return absl::FailedPreconditionError(
        absl::StrCat("CUDA finds no device (", cudaGetErrorString(error),
                     "): the host needs a GPU that this process may see and a driver for CUDA 13"));
  }
  if (index < count) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("there is no device ", index, ": this process sees ", count,
                                                    "; give one of cuda:0 to cuda:", count - 1));
}

// Makes the device's context here, where what speaks against it is one clear error.
absl::Status CheckContext(const Device& device) {
  try {
    device.memory();
    device.identity();
  } catch (const c10::Error& e) {
    return absl::UnavailableError(  // which may pass: whoever starts workers tries again
        absl::StrCat("the device cannot be used (", e.what_without_backtrace(),
                     "): it has failed, has no memory for one more process, or is another process's alone"));
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace stemma::worker::cuda

extern "C" __attribute__((visibility("default"))) stemma::worker::Device* StemmaOpenDevice(const char* build, int index,
                                                                                           absl::Status& failure) {
  const std::string ours = STEMMA_DEVICE_BUILD;
  if (ours != build) {
    failure = absl::FailedPreconditionError(absl::StrCat("the CUDA library is of build ", ours, ", the worker of ",
                                                         build, ": install both from one build"));
    return nullptr;
  }
  failure = stemma::worker::cuda::CheckDevice(index);
  if (!failure.ok()) return nullptr;
  auto device = std::make_unique<stemma::worker::cuda::CudaDevice>(index);
  failure = stemma::worker::cuda::CheckContext(*device);
  return failure.ok() ? device.release() : nullptr;
}
