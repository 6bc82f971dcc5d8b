// A model's architecture, read from a Hugging Face config.json: Llama 3.x, Qwen2/2.5, Qwen3 (dense). Torch-free.
//
// A config that asks for something Stemma does not do (sliding window in use, another rope type or activation, dropout,
// quantized weights, attention or MLP biases other than Qwen2's, another family) is refused, naming the field.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace stemma {

// rope_type "llama3": wavelengths beyond original_max_positions / low_freq_factor are stretched by `factor`, those
// below original_max_positions / high_freq_factor are kept, in between interpolated.
struct Llama3RopeScaling {
  double factor = 1;
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  int64_t original_max_positions = 8192;
};

struct ModelConfig {
  std::string model_type;  // llama, qwen2, qwen3
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;  // D
  int64_t num_layers = 0;
  int64_t num_heads = 0;     // H
  int64_t num_kv_heads = 0;  // K
  int64_t head_size = 0;     // E; Qwen3: not hidden_size / num_heads
  int64_t ffn_size = 0;      // F
  int64_t max_positions = 0;
  double rms_norm_eps = 0;
  double rope_theta = 0;
  std::optional<Llama3RopeScaling> rope_scaling = std::nullopt;
  bool tie_word_embeddings = false;
  bool qkv_bias = false;  // Qwen2
  bool qk_norm = false;   // Qwen3

  int64_t q_size() const { return num_heads * head_size; }
  int64_t kv_size() const { return num_kv_heads * head_size; }
  int64_t num_parameters() const;
};

// `json` is the text of config.json; transformers 4 and 5 spellings. Errors: InvalidArgument naming the field.
absl::StatusOr<ModelConfig> ParseModelConfig(std::string_view json);

// One tensor of the model by its Hugging Face name, e.g. "model.layers.3.self_attn.q_proj.weight".
struct TensorSpec {
  std::string name;
  std::vector<int64_t> shape;
};

// Every tensor that a checkpoint of this model holds, in Hugging Face's module order. Tied: no lm_head.weight.
std::vector<TensorSpec> ModelTensors(const ModelConfig& config);

}  // namespace stemma
