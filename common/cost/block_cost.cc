#include "common/cost/block_cost.h"

#include "common/cost/tape_policy.h"

namespace stemma {
namespace {

// The sizes of a model as what costs are made of.
struct Sizes {
  Sizes(const ModelConfig& c, int64_t tp)
      : hidden(static_cast<double>(c.hidden_size)),
        normed(hidden / static_cast<double>(tp)),
        q(static_cast<double>(c.q_size())),
        kv(2.0 * static_cast<double>(c.kv_size())),
        ffn(c.mlps_per_token() * static_cast<double>(c.ffn_size)),
        vocabulary(static_cast<double>(c.vocab_size)),
        router(c.experts ? normed * static_cast<double>(c.experts->count) : 0),
        experts(c.experts ? static_cast<double>(c.experts->count) / static_cast<double>(c.experts->per_token) : 1),
        routed(c.experts ? (c.mlps_per_token() + static_cast<double>(c.experts->per_token)) * hidden + ffn : 0) {}

  double hidden;
  double normed;                  // elements of a row that norms and residuals touch here
  double q, kv, ffn, vocabulary;  // kv: both; ffn: of all MLPs that a row passes
  double router;                  // weights, of own rows alone
  double experts;                 // for each one that a row passes
  double routed;                  // elements that are gathered for a row's experts, weighted, and added up again
};

// Returns the cost of a block whose rows are all multiplied with all its weights.
BlockCost WithAllRead(BlockCost cost) {
  cost.read = cost.weights;
  return cost;
}

// Returns what the block's backward recomputes; its passes are counted with those of the backward.
BlockCost RecomputedCost(const ModelConfig& config, Block block, v1::TapePolicy policy, int64_t tp) {
  if (KeepsElementwise(policy)) return {};
  const Sizes s(config, tp);
  if (block == Block::kMlp) {
    BlockCost cost = {.elements = ForwardCost(config, block, tp).elements};
    if (!KeepsGateUp(policy)) cost.weights = 2 * s.hidden * s.ffn;
    return cost;
  }
  if (block != Block::kAttention) return {};
  if (!KeepsAttention(policy)) return ForwardCost(config, block, tp);
  if (!KeepsQueries(policy)) return {.weights = s.hidden * (s.q + s.kv), .elements = 2 * s.normed + 2 * s.q};
  return {.elements = 2 * s.normed};
}

}  // namespace

BlockCost& BlockCost::operator+=(const BlockCost& other) {
  weights += other.weights;
  read += other.read;
  pairs += other.pairs;
  elements += other.elements;
  return *this;
}

BlockCost ForwardCost(const ModelConfig& config, Block block, int64_t tp) {
  const Sizes s(config, tp);
  switch (block) {
    case Block::kAttention:
      return WithAllRead(
          {.weights = s.hidden * (s.q + s.kv) + s.q * s.hidden, .pairs = s.q, .elements = 2 * s.normed + 2 * s.q});
    case Block::kKeyValue:
      return WithAllRead({.weights = s.hidden * s.kv});
    case Block::kMlp:
      return {.weights = 3 * s.hidden * s.ffn + s.router,
              .read = 3 * s.hidden * s.ffn * s.experts + s.router,
              .elements = 2 * s.normed + 3 * s.ffn + s.routed};
    case Block::kHead:
      return WithAllRead({.weights = s.hidden * s.vocabulary});
  }
  return {};
}

BlockCost LayerForwardCost(const ModelConfig& config, int64_t tp) {
  BlockCost cost = ForwardCost(config, Block::kAttention, tp);
  return cost += ForwardCost(config, Block::kMlp, tp);
}

double WeightsReadForEachUsed(const ModelConfig& config) {
  const auto layers = static_cast<double>(config.num_layers);
  const BlockCost layer = LayerForwardCost(config), head = ForwardCost(config, Block::kHead);
  return (layers * layer.read + head.read) / (layers * layer.weights + head.weights);
}

BlockCost LayerRecomputedCost(const ModelConfig& config, v1::TapePolicy policy, int64_t tp) {
  BlockCost cost = RecomputedCost(config, Block::kAttention, policy, tp);
  return cost += RecomputedCost(config, Block::kMlp, policy, tp);
}

// K before its norm is what the norm's backward reads; without one, the backward needs no K/V.
BlockCost KeyValueRecomputedCost(const ModelConfig& config, v1::TapePolicy policy) {
  if (!config.qk_norm || Keeps(policy, TapeTensor::kBeforeQkNorm)) return {};
  return ForwardCost(config, Block::kKeyValue);
}

}  // namespace stemma
