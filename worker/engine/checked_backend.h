// A device's backend as a run computes with it: its kernels tried on the device, and those that fail replaced and
// named.
#pragma once

#include <string>

#include "worker/backend/device.h"

namespace stemma::worker {

// Makes the backend on the calling thread, which is the one that computes. The CPU's is not checked: tests of every
// build try that one. data_directory: where the result of the check is kept; empty: nowhere. Throws what LibTorch
// throws.
Backend CheckedBackend(const Device& device, const BackendRequest& request, const std::string& data_directory);

}  // namespace stemma::worker
