// Opens the device of --device: the CPU, or one that a library beside the worker brings. Called once by main, before
// any tensor is made.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "common/base/device_name.h"
#include "worker/backend/device.h"

namespace stemma::worker {

// The library is found where the worker's own libraries are, or where the loader looks. Errors: FailedPrecondition - no
// library, no driver, no such device, or a library of another build; InvalidArgument - a kind that no library brings.
absl::StatusOr<std::unique_ptr<Device>> OpenDevice(const DeviceName& device);

}  // namespace stemma::worker
