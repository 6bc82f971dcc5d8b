#include "worker/engine/device_report.h"

namespace stemma::worker {

void SetDeviceFields(const Backend& backend, const std::string& device_name, internal::v1::Ready& ready) {
  ready.set_weights_bytes(static_cast<uint64_t>(backend.memory_stats().current_bytes));
  ready.set_memory_free_bytes(static_cast<uint64_t>(backend.free_bytes()));
  ready.set_device_name(device_name);
  for (const KernelOff& off : backend.kernels_off) {
    v1::KernelOff& told = *ready.add_kernels_off();
    told.set_kernel(off.kernel);
    told.set_reason(off.reason);
  }
}

}  // namespace stemma::worker
