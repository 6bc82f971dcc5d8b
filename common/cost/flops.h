// Exact FLOPs of a plan. Torch-free arithmetic from shapes: the planner's seconds are made of them.
//
// 2 per multiply-add; linear layers 2·params forward and 4·params backward per row; attention 4·H·E forward and 8·H·E
// backward per (query, key) pair, causal pairs counted exactly; the head on suffix rows only. Both schedules are pruned
// alike: the last response token is not run, and in the last layer rows before the last prompt token compute K/V only.
#pragma once

#include <cstdint>

#include "common/cost/byte_shape.h"
#include "common/model/model_config.h"
#include "stemma/v1/plan.pb.h"

namespace stemma {

struct Flops {
  double forward = 0;
  double backward = 0;
  double total() const { return forward + backward; }
  Flops& operator+=(const Flops& other);
};

// Phase A and C of a prefix of `rows` tokens (P - 1).
Flops PrefixFlops(const ModelConfig& config, int64_t rows);

// Phase B of one suffix of `rows` (R) behind `prefix_rows` ancestors, head included.
Flops SuffixFlops(const ModelConfig& config, int64_t prefix_rows, int64_t rows);

// One whole trajectory in the dense schedule: prefix_rows + rows, head on the last `rows`.
Flops DenseFlops(const ModelConfig& config, int64_t prefix_rows, int64_t rows);

// Segments of one kind, added up. FLOPs are linear in both sums, so that a group's are F_P + sum of F_S whatever the
// number of its rollouts. Whole numbers: sums below 2^53 are exact in any order.
struct SegmentSums {
  double rows = 0;
  double pairs = 0;  // (query, key), causal

  // One segment of `rows` behind so many ancestors.
  void Add(int64_t ancestor_rows, int64_t rows);
};

// Forward FLOPs in the parts that run at rates of their own; backward takes twice as many of each.
struct FlopParts {
  double linear = 0, attention = 0, head = 0;
  double total() const { return linear + attention + head; }
};

// Return what one rank computes; stages add up to the whole.
FlopParts PrefixParts(const ByteShape& shape, const SegmentSums& prefixes);
FlopParts SuffixParts(const ByteShape& shape, const SegmentSums& suffixes);

// Forward FLOPs that a policy adds to the backward of so many segments: in all layers of suffixes; of prefixes in the
// full layers and, with QK-norm, in the one of which only K and V are wanted. S5, of prefixes only, runs all of their
// forward again.
FlopParts PrefixRecomputeParts(const ByteShape& shape, const SegmentSums& prefixes, v1::TapePolicy policy);
FlopParts SuffixRecomputeParts(const ModelConfig& config, const SegmentSums& suffixes, v1::TapePolicy policy);

// Blocks of scores that one head's attention works through in one layer, on CPU: the rows of a span over themselves,
// and rows over `keys` earlier ones. What a block costs beside its products grows with its scores, so that a part of a
// block counts as that part; on the diagonal the scores that nobody sees count too. What is done around a span's call,
// buffers and copies, counts as a block.
double CausalScoreBlocks(int64_t rows);
double AncestorScoreBlocks(int64_t rows, int64_t keys);

}  // namespace stemma
