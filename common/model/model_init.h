// A random model as a Hugging Face directory: the same bytes on every machine for the same architecture, seed and
// options. Integers make the random numbers, so no library function rounds differently; a tensor's values depend on the
// seed and its name only, not on order or shards.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "common/model/model_config.h"
#include "common/model/safetensors.h"

namespace stemma {

struct ModelInitOptions {
  uint64_t seed = 0;
  safetensors::Dtype dtype = safetensors::Dtype::kF32;  // F32, F64, BF16, F16
  double weight_std = 0.02;                             // matrices and embeddings
  double bias_std = 0.02;
  double norm_std = 0;                                 // norm weights are 1 + this much noise; tests want > 0
  uint64_t max_shard_bytes = 0;                        // 0: one file; else shards with an index
  std::optional<int64_t> eos_token_id = std::nullopt;  // with it, a generation_config.json
  std::function<bool()> stopped = nullptr;             // asked every 65,536 numbers; none: the model is written whole
};

// config.json of the architecture, as transformers 5 writes it.
std::string ModelConfigJson(const ModelConfig& config, const ModelInitOptions& options = {});

// Creates the directory `path`, whose parent exists. Errors: AlreadyExists - there is something at `path`;
// InvalidArgument - the config or an option; Cancelled - options.stopped said so, and the file system's, after which
// the directory is removed again.
absl::Status WriteRandomModel(const ModelConfig& config, const ModelInitOptions& options, const std::string& path);

}  // namespace stemma
