#include "tests/gpu/checked_backend.h"

#include "worker/engine/checked_backend.h"

namespace stemma::testing {

Backend CheckedBackend(const Device& device, const std::string& dtype, const ModelConfig& model,
                       const std::string& record_folder) {
  return worker::CheckedBackend(device,
                                {.run_dtype = dtype == "bf16" ? at::kBFloat16 : at::kFloat,
                                 .num_heads = model.num_heads,
                                 .num_kv_heads = model.num_kv_heads,
                                 .head_size = model.head_size},
                                record_folder);
}

}  // namespace stemma::testing
