// A device's backend as a worker gets it: its kernels checked, and those that fail replaced and named. Shared by the
// tests and the bench of this folder.
#pragma once

#include <string>

#include "common/model/model_config.h"
#include "tests/testing/namespaces.h"
#include "worker/backend/device.h"

namespace stemma::testing {

// dtype: "fp32" or "bf16". The CPU's is not checked, as no worker checks it. `record_folder`: where records of the
// check are kept and read; empty: nowhere. Dies where the device fails.
Backend CheckedBackend(const Device& device, const std::string& dtype, const ModelConfig& model,
                       const std::string& record_folder = "");

}  // namespace stemma::testing
