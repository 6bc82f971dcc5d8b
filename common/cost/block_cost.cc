#include "common/cost/block_cost.h"

#include "common/cost/tape_policy.h"

namespace stemma {
namespace {

// The sizes of a model as what costs are made of.
struct Sizes {
  explicit Sizes(const ModelConfig& c)
      : hidden(static_cast<double>(c.hidden_size)),
        q(static_cast<double>(c.q_size())),
        kv(2.0 * static_cast<double>(c.kv_size())),
        ffn(static_cast<double>(c.ffn_size)),
        vocabulary(static_cast<double>(c.vocab_size)) {}

  double hidden, q, kv, ffn, vocabulary;  // kv: both
};

}  // namespace

BlockCost& BlockCost::operator+=(const BlockCost& other) {
  weights += other.weights;
  pairs += other.pairs;
  elements += other.elements;
  return *this;
}

BlockCost ForwardCost(const ModelConfig& config, Block block) {
  const Sizes s(config);
  switch (block) {
    case Block::kAttention:
      return {.weights = s.hidden * (s.q + s.kv) + s.q * s.hidden, .pairs = s.q, .elements = 2 * s.hidden + 2 * s.q};
    case Block::kKeyValue:
      return {.weights = s.hidden * s.kv};
    case Block::kMlp:
      return {.weights = 3 * s.hidden * s.ffn, .elements = 2 * s.hidden + 3 * s.ffn};
    case Block::kHead:
      return {.weights = s.hidden * s.vocabulary};
  }
  return {};
}

BlockCost RecomputedCost(const ModelConfig& config, Block block, v1::TapePolicy policy) {
  if (KeepsElementwise(policy)) return {};
  const Sizes s(config);
  if (block == Block::kMlp) {
    BlockCost cost = {.elements = ForwardCost(config, block).elements};
    if (!KeepsGateUp(policy)) cost.weights = 2 * s.hidden * s.ffn;
    return cost;
  }
  if (block != Block::kAttention) return {};
  if (!KeepsAttention(policy)) return ForwardCost(config, block);
  if (!KeepsQueries(policy)) return {.weights = s.hidden * (s.q + s.kv), .elements = 2 * s.hidden + 2 * s.q};
  return {.elements = 2 * s.hidden};
}

BlockCost LayerForwardCost(const ModelConfig& config) {
  BlockCost cost = ForwardCost(config, Block::kAttention);
  return cost += ForwardCost(config, Block::kMlp);
}

BlockCost LayerRecomputedCost(const ModelConfig& config, v1::TapePolicy policy) {
  BlockCost cost = RecomputedCost(config, Block::kAttention, policy);
  return cost += RecomputedCost(config, Block::kMlp, policy);
}

}  // namespace stemma
