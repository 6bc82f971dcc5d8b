#include "tests/gpu/checked_backend.h"

#include <utility>

#include "worker/backend/composed/composed_backend.h"
#include "worker/backend/self_check/run_self_check.h"

namespace stemma::testing {

Backend CheckedBackend(const Device& device, const std::string& dtype, const ModelConfig& model,
                       const std::string& record_folder) {
  const at::ScalarType run_dtype = dtype == "bf16" ? at::kBFloat16 : at::kFloat;
  Backend backend = device.MakeBackend({.run_dtype = run_dtype,
                                        .num_heads = model.num_heads,
                                        .num_kv_heads = model.num_kv_heads,
                                        .head_size = model.head_size});
  const DeviceIdentity identity = device.identity();
  if (identity.name.empty()) return backend;
  return RunSelfCheck({.candidate = std::move(backend),
                       .reference = {ComposedKernels(), MakeComposedAttention()},
                       .dtype = run_dtype,
                       .fingerprint = {.device_name = identity.name,
                                       .compute_capability = identity.compute_capability,
                                       .driver = identity.driver,
                                       .cuda_runtime = identity.runtime,
                                       .torch = identity.torch,
                                       .cudnn = identity.cudnn,
                                       .build_id = identity.build_id,
                                       .dtype = dtype,
                                       .shape = {model.num_heads, model.num_kv_heads, model.head_size}},
                       .data_directory = record_folder});
}

}  // namespace stemma::testing
