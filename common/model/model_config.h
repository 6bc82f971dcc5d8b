// A model's architecture, read from a Hugging Face config.json of a family in families.h. Torch-free.
//
// A config that asks for something Stemma does not do (sliding window in use, another rope type or activation, dropout,
// quantized weights, attention or MLP biases that the family does not have, another family) is refused, naming the
// field.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/model/families.h"

namespace stemma {

// rope_type "llama3": wavelengths beyond original_max_positions / low_freq_factor are stretched by `factor`, those
// below original_max_positions / high_freq_factor are kept, in between interpolated.
struct Llama3RopeScaling {
  double factor = 1;
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  int64_t original_max_positions = 8192;
};

// A layer's MLPs of which each token passes some: those whose probabilities are largest in a softmax over all of them.
struct Experts {
  int64_t count = 8;      // X
  int64_t per_token = 2;  // k
  // The weights of a token's experts are their probabilities divided by their sum; else the probabilities themselves.
  bool weights_sum_to_one = true;
  // Into how many parts they are divided, of which a rank has one: of ModelShard::LocalConfig(). 1: it has all.
  int64_t ep = 1;

  // Returns how many a rank has.
  int64_t held() const { return count / ep; }
  bool operator==(const Experts&) const = default;
};

struct ModelConfig {
  std::string model_type;  // names a family
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;  // D
  int64_t num_layers = 0;
  int64_t num_heads = 0;     // H
  int64_t num_kv_heads = 0;  // K
  int64_t head_size = 0;     // E; in some families not hidden_size / num_heads
  int64_t ffn_size = 0;      // F; with experts, of each
  int64_t max_positions = 0;
  double rms_norm_eps = 0;
  double rope_theta = 0;
  std::optional<Llama3RopeScaling> rope_scaling = std::nullopt;
  bool tie_word_embeddings = false;
  bool qkv_bias = false;
  bool qk_norm = false;
  std::optional<Experts> experts = std::nullopt;  // nullopt: one MLP, which every token passes

  // Sets model_type and what else the family decides. Experts that the family has, and the config had not, are those of
  // the struct above.
  void SetFamily(const Family& family);

  int64_t q_size() const { return num_heads * head_size; }
  int64_t kv_size() const { return num_kv_heads * head_size; }
  // Returns how many of the layer's MLPs that are here a token passes on average.
  double mlps_per_token() const {
    return experts ? static_cast<double>(experts->per_token) / static_cast<double>(experts->ep) : 1;
  }
  int64_t num_parameters() const;
};

// `json` is the text of config.json; transformers 4 and 5 spellings. Errors: InvalidArgument naming the field.
absl::StatusOr<ModelConfig> ParseModelConfig(std::string_view json);

}  // namespace stemma
