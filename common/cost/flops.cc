#include "common/cost/flops.h"

#include "common/cost/block_cost.h"
#include "common/cost/kernel_blocks.h"
#include "common/cost/tape_policy.h"

namespace stemma {
namespace {

// Forward FLOPs of so many layers' products and of their attention over so many segments.
FlopParts Parts(const BlockCost& cost, double layers, const SegmentSums& segments) {
  return {.linear = layers * (2 * cost.weights * segments.rows),
          .attention = layers * (4 * cost.pairs * segments.pairs)};
}

SegmentSums One(int64_t ancestor_rows, int64_t rows) {
  SegmentSums sums;
  sums.Add(ancestor_rows, rows);
  return sums;
}

Flops ForwardAndBackward(const FlopParts& parts) { return {parts.total(), 2 * parts.total()}; }

// The layers that prefixes run through: full ones, and after them, where it is the model's last, one of which only K
// and V are wanted.
struct PrefixLayers {
  int64_t full = 0;
  bool last = true;
};

FlopParts PrefixParts(const ModelConfig& config, const PrefixLayers& layers, const SegmentSums& prefixes) {
  FlopParts parts = Parts(LayerForwardCost(config), static_cast<double>(layers.full), prefixes);
  if (layers.last) parts.linear += 2 * ForwardCost(config, Block::kKeyValue).weights * prefixes.rows;
  return parts;
}

FlopParts SuffixParts(const ModelConfig& config, bool last, const SegmentSums& suffixes) {
  FlopParts parts = Parts(LayerForwardCost(config), static_cast<double>(config.num_layers), suffixes);
  if (last) parts.head = 2 * ForwardCost(config, Block::kHead).weights * suffixes.rows;
  return parts;
}

FlopParts PrefixRecomputeParts(const ModelConfig& config, const PrefixLayers& layers, const SegmentSums& prefixes,
                               v1::TapePolicy policy) {
  if (!KeepsInputs(policy)) return PrefixParts(config, layers, prefixes);
  FlopParts parts = Parts(LayerRecomputedCost(config, policy), static_cast<double>(layers.full), prefixes);
  if (layers.last) parts.linear += 2 * KeyValueRecomputedCost(config, policy).weights * prefixes.rows;
  return parts;
}

}  // namespace

Flops& Flops::operator+=(const Flops& other) {
  forward += other.forward;
  backward += other.backward;
  return *this;
}

void SegmentSums::Add(int64_t ancestor_rows, int64_t segment_rows) {
  const auto r = static_cast<double>(segment_rows);
  rows += r;
  pairs += r * static_cast<double>(ancestor_rows) + r * (r + 1) / 2;
}

FlopParts PrefixParts(const ByteShape& shape, const SegmentSums& prefixes) {
  return PrefixParts(shape.config, {shape.full_layers(), shape.last_stage}, prefixes);
}

FlopParts SuffixParts(const ByteShape& shape, const SegmentSums& suffixes) {
  return SuffixParts(shape.config, shape.last_stage, suffixes);
}

FlopParts PrefixRecomputeParts(const ByteShape& shape, const SegmentSums& prefixes, v1::TapePolicy policy) {
  return PrefixRecomputeParts(shape.config, {shape.full_layers(), shape.last_stage}, prefixes, policy);
}

FlopParts SuffixRecomputeParts(const ModelConfig& config, const SegmentSums& suffixes, v1::TapePolicy policy) {
  return Parts(LayerRecomputedCost(config, policy), static_cast<double>(config.num_layers), suffixes);
}

Flops PrefixFlops(const ModelConfig& config, int64_t rows) {
  const PrefixLayers layers = {config.num_layers - 1, /*last=*/true};
  return ForwardAndBackward(PrefixParts(config, layers, One(0, rows)));
}

Flops SuffixFlops(const ModelConfig& config, int64_t prefix_rows, int64_t rows) {
  return ForwardAndBackward(SuffixParts(config, /*last=*/true, One(prefix_rows, rows)));
}

Flops DenseFlops(const ModelConfig& config, int64_t prefix_rows, int64_t rows) {
  // Causal pairs of the whole are those of the prefix, of the suffix, and suffix × prefix: nothing else is shared.
  Flops flops = PrefixFlops(config, prefix_rows);
  return flops += SuffixFlops(config, prefix_rows, rows);
}

double CausalScoreBlocks(int64_t rows) {
  if (rows == 0) return 0;
  static_assert(kAttentionQueryBlock == kAttentionKeyBlock);
  constexpr double kAround = 1;
  const int64_t whole = rows / kAttentionQueryBlock, rest = rows % kAttentionQueryBlock;
  const int64_t whole_blocks = whole * (whole + 1) / 2;
  return kAround + static_cast<double>(whole_blocks) + AncestorScoreBlocks(rest, rows);
}

double AncestorScoreBlocks(int64_t rows, int64_t keys) {
  return static_cast<double>(rows) / kAttentionQueryBlock * static_cast<double>(keys) / kAttentionKeyBlock;
}

}  // namespace stemma
