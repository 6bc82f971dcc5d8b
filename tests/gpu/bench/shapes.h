// The models and groups that are measured, and their small stand-ins on which the bench itself is tested.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/model/model_config.h"
#include "tests/testing/namespaces.h"
#include "tests/testing/synthetic.h"

namespace stemma::testing {

// One prompt and so many responses of one length, in tokens.
struct GroupSize {
  int64_t prompt = 0, response = 0, rollouts = 1;
  std::string Text() const {
    return std::to_string(prompt) + "/" + std::to_string(response) + "/" + std::to_string(rollouts);
  }
};

inline ModelConfig WithFamily(ModelConfig config, const char* family, double theta, int64_t positions) {
  config.SetFamily(*FindFamily(family));
  config.rope_theta = theta;
  config.max_positions = positions;
  return config;
}

// Llama3-8B's shape, and Qwen3-8B's.
inline ModelConfig LlamaConfig(bool tiny) {
  const SyntheticShape small = {
      .hidden = 128, .layers = 3, .heads = 2, .kv_heads = 1, .head_size = 64, .ffn = 192, .vocab = 512};
  const SyntheticShape large = {
      .hidden = 4096, .layers = 32, .heads = 32, .kv_heads = 8, .head_size = 128, .ffn = 14336, .vocab = 128256};
  return WithFamily(SyntheticModel(tiny ? small : large), "llama", 500000, tiny ? 4096 : 131072);
}
inline ModelConfig QwenConfig(bool tiny) {
  ModelConfig config = LlamaConfig(tiny);
  if (!tiny) {
    config.num_layers = 36;
    config.ffn_size = 12288;
    config.vocab_size = 151936;
  }
  return WithFamily(config, "qwen3", 1000000, tiny ? 4096 : 40960);
}

// A trajectory's tokens, cut into prompt and response in four ways; the first is the one that reuse is made for.
inline std::vector<GroupSize> Splits(bool tiny) {
  if (tiny) return {{160, 32}, {128, 64}, {96, 96}, {32, 160}};
  return {{10240, 2048}, {8192, 4096}, {6144, 6144}, {2048, 10240}};
}
// Returns them in the order in which they are measured, the most telling first.
inline std::vector<int64_t> RolloutCounts(bool tiny) {
  if (tiny) return {4, 2};
  return {16, 2, 8, 4};
}
// Groups that take minutes.
inline std::vector<int64_t> LargeRolloutCounts(bool tiny) {
  if (tiny) return {6};
  return {32, 128};
}
inline int64_t TrajectoryTokens(bool tiny) { return Splits(tiny)[0].prompt + Splits(tiny)[0].response; }

}  // namespace stemma::testing
