#include "worker/engine/open_device.h"

#include <dlfcn.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "worker/backend/cpu/cpu_backend.h"
#include "worker/parallel/cuda_environment.h"
#include "worker/parallel/gloo_transport.h"
#include "worker/parallel/transport.h"

namespace stemma::worker {
namespace {

constexpr char kCudaLibrary[] = "libstemma_cuda.so";

class CpuDevice final : public Device {
 public:
  DeviceIdentity identity() const override { return {}; }
  DeviceMemory memory() const override { return HostMemory(); }
  Backend MakeBackend(const BackendRequest& /*request*/) const override { return MakeCpuBackend(); }
  absl::StatusOr<std::shared_ptr<const Transport>> MakeTransport() const override { return MakeGlooTransport(); }
};

// Loads it for all of the process: LibTorch finds its CUDA side among the global symbols, and looks only once.
absl::StatusOr<OpenDeviceFunction*> LoadLibrary(const char* library) {
  void* const handle = dlopen(library, RTLD_NOW | RTLD_GLOBAL);
  if (handle == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("the CUDA library cannot be loaded (", dlerror(),
                     "): put libstemma_cuda.so and LibTorch's CUDA libraries beside the worker's other libraries, or "
                     "compute on the CPU with --device cpu"));
  }
  auto* const open = reinterpret_cast<OpenDeviceFunction*>(dlsym(handle, kOpenDeviceSymbol));
  if (open != nullptr) return open;
  return absl::FailedPreconditionError(absl::StrCat(library, " is not a library of this worker: it has no ",
                                                    kOpenDeviceSymbol, "; install both from one build"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> OpenDevice(const DeviceName& device) {
  if (device.kind == "cpu") return std::make_unique<CpuDevice>();
  if (device.kind != "cuda") {
    return absl::InvalidArgumentError(absl::StrCat("this worker has no kernels for a device of kind \"", device.kind,
                                                   "\"; known: cpu, as cpu:0, and cuda, as cuda:0"));
  }
  TellCuda();
  const absl::StatusOr<OpenDeviceFunction*> open = LoadLibrary(kCudaLibrary);
  if (!open.ok()) return open.status();
  absl::Status failure;
  std::unique_ptr<Device> opened((*open)(STEMMA_DEVICE_BUILD, static_cast<int>(device.index), failure));
  if (opened == nullptr) return failure;
  return opened;
}

}  // namespace stemma::worker
