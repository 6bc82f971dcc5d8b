// Architectures for tests: small ones, with sizes that differ wherever they may, and Llama 3 8B.
#pragma once

#include <vector>

#include "common/model/model_config.h"

namespace stemma {

inline ModelConfig Llama3_8B() {  // 8,030,261,248 parameters
  return {.model_type = "llama",
          .vocab_size = 128256,
          .hidden_size = 4096,
          .num_layers = 32,
          .num_heads = 32,
          .num_kv_heads = 8,
          .head_size = 128,
          .ffn_size = 14336,
          .max_positions = 8192};
}

inline ModelConfig SmallLlama() {
  ModelConfig config{.model_type = "llama",
                     .vocab_size = 97,
                     .hidden_size = 16,
                     .num_layers = 2,
                     .num_heads = 4,
                     .num_kv_heads = 2,
                     .head_size = 4,
                     .ffn_size = 24,
                     .max_positions = 256,
                     .rms_norm_eps = 1e-5,
                     .rope_theta = 500000};
  config.rope_scaling = {.factor = 8, .low_freq_factor = 1, .high_freq_factor = 4, .original_max_positions = 64};
  return config;
}

inline ModelConfig SmallQwen2() {
  ModelConfig config = SmallLlama();
  config.SetFamily(*FindFamily("qwen2"));
  config.rope_scaling.reset();
  return config;
}

inline ModelConfig SmallQwen3() {
  ModelConfig config = SmallLlama();
  config.SetFamily(*FindFamily("qwen3"));
  config.rope_scaling.reset();
  config.head_size = 6;
  config.tie_word_embeddings = true;
  return config;
}

// One of each family, all of the same sizes.
inline std::vector<ModelConfig> SmallConfigs() {
  std::vector<ModelConfig> configs;
  for (const Family& family : Families()) configs.emplace_back(SmallLlama()).SetFamily(family);
  return configs;
}

}  // namespace stemma
