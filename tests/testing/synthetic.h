// Small models and requests of any shape, from fixed seeds.
#pragma once

#include <optional>
#include <random>
#include <string>
#include <vector>

#include "common/admission/training_request.h"
#include "common/model/model_config.h"
#include "tests/testing/namespaces.h"

namespace stemma::testing {

struct SyntheticShape {
  int64_t hidden = 128, layers = 4, heads = 4, kv_heads = 2, head_size = 32, ffn = 352, vocab = 512;
  bool qk_norm = false;                           // Qwen3; else Llama
  std::optional<Experts> experts = std::nullopt;  // Qwen3-MoE
};

inline ModelConfig SyntheticModel(const SyntheticShape& shape) {
  ModelConfig config;
  config.experts = shape.experts;
  config.SetFamily(*FindFamily(shape.experts ? "qwen3_moe" : shape.qk_norm ? "qwen3" : "llama"));
  config.vocab_size = shape.vocab;
  config.hidden_size = shape.hidden;
  config.num_layers = shape.layers;
  config.num_heads = shape.heads;
  config.num_kv_heads = shape.kv_heads;
  config.head_size = shape.head_size;
  config.ffn_size = shape.ffn;
  config.max_positions = 4096;
  config.rms_norm_eps = 1e-6;
  config.rope_theta = 10000;
  return config;
}

// int32, little-endian.
inline std::string SyntheticTokens(std::mt19937& random, int64_t count, int64_t vocab) {
  std::string bytes;
  for (int64_t i = 0; i < count; ++i) {
    const auto token = static_cast<int32_t>(random() % static_cast<uint32_t>(vocab));
    bytes.append(reinterpret_cast<const char*>(&token), sizeof(token));
  }
  return bytes;
}

// One group for each prompt, each with all these responses; advantages that differ.
inline TrainingRequest SyntheticRequest(const std::vector<int64_t>& prompts, const std::vector<int64_t>& responses,
                                        int64_t vocab) {
  std::mt19937 random(5);
  TrainingRequest request;
  v1::LossConfig& loss = *request.update.mutable_loss();
  loss.set_loss_mode("gpg");
  loss.set_loss_agg_mode("token-mean");
  loss.set_temperature(1);
  for (const int64_t prompt : prompts) {
    v1::PromptGroup group;
    group.set_uid("g" + std::to_string(request.groups.size()));
    group.set_prompt_tokens(SyntheticTokens(random, prompt, vocab));
    for (size_t i = 0; i < responses.size(); ++i) {
      v1::Rollout& rollout = *group.add_rollouts();
      rollout.set_rollout_id(group.uid() + "-" + std::to_string(i));
      rollout.set_response_tokens(SyntheticTokens(random, responses[i], vocab));
      rollout.set_advantage(1 + static_cast<double>(i % 3) / 4);
    }
    request.groups.push_back(std::move(group));
  }
  return request;
}

}  // namespace stemma::testing
