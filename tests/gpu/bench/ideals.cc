#include "tests/gpu/bench/ideals.h"

#include "common/cost/flops.h"

namespace stemma::testing {
namespace {

// Forward and backward of so many tokens in all layers, and of the head on some of them.
double SegmentFlops(const ModelConfig& config, double tokens, double pairs, double head_tokens) {
  const auto hidden = static_cast<double>(config.hidden_size);
  const double attention_weights = hidden * static_cast<double>(2 * config.q_size() + 2 * config.kv_size());
  const double mlp_weights = 3 * hidden * static_cast<double>(config.ffn_size);
  const double linear = 2 * (attention_weights + mlp_weights) * tokens;
  const double attention = 4 * static_cast<double>(config.q_size()) * pairs;
  const double head = 2 * hidden * static_cast<double>(config.vocab_size) * head_tokens;
  return 3 * (static_cast<double>(config.num_layers) * (linear + attention) + head);
}

double CausalPairs(double tokens) { return tokens * (tokens + 1) / 2; }

}  // namespace

GroupFlops PrunedFlops(const ModelConfig& config, const GroupSize& size) {
  const auto n = static_cast<double>(size.rollouts);
  const int64_t prefix = size.prompt - 1;
  return {.dense = n * DenseFlops(config, prefix, size.response).total(),
          .reuse = PrefixFlops(config, prefix).total() + n * SuffixFlops(config, prefix, size.response).total()};
}

GroupFlops PlainFlops(const ModelConfig& config, const GroupSize& size) {
  const auto n = static_cast<double>(size.rollouts), p = static_cast<double>(size.prompt),
             s = static_cast<double>(size.response);
  const double prefix = SegmentFlops(config, p, CausalPairs(p), 0);
  const double suffix = SegmentFlops(config, s, s * p + CausalPairs(s), s);
  return {.dense = n * SegmentFlops(config, p + s, CausalPairs(p + s), s), .reuse = prefix + n * suffix};
}

}  // namespace stemma::testing
