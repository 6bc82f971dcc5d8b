// What each block of the model costs per row, in one table: FLOPs, passes over weights and elementwise work are counted
// from it, by the FLOPs of a plan (common/cost/flops.h) and by the planner's seconds (server/planner/cost_model.h).
// Pure.
#pragma once

#include <cstdint>

#include "common/model/model_config.h"
#include "stemma/v1/plan.pb.h"

namespace stemma {

enum class Block : uint8_t {
  kAttention,  // of a full layer
  kKeyValue,   // what remains of attention where only K and V are wanted: a prefix's last layer
  kMlp,        // with experts, those that a row passes, and their router
  kHead,
};

struct BlockCost {
  double weights = 0;   // of its matrix products: 2 FLOPs of a row each forward, 4 backward
  double read = 0;      // weights that a pass over many rows reads: of all experts, of which a row passes few
  double pairs = 0;     // of a (query, key) pair: 4 FLOPs each forward, 8 backward
  double elements = 0;  // that a row's norms, RoPE, SwiGLU and way to its experts touch forward; backward about twice

  BlockCost& operator+=(const BlockCost& other);
};

// `tp`: of several tensor-parallel ranks, each has a part of the rows whose width is the model's; `config` is then what
// one of them computes with (common/cost/rank_shape.h).
BlockCost ForwardCost(const ModelConfig& config, Block block, int64_t tp = 1);

// Returns how many weights a pass over many rows reads for each weight that a row is multiplied with, of all layers and
// the head: 1 where there are no experts.
double WeightsReadForEachUsed(const ModelConfig& config);

// Returns what both blocks of a full layer cost.
BlockCost LayerForwardCost(const ModelConfig& config, int64_t tp = 1);
// Returns what their backward recomputes because the policy dropped it.
BlockCost LayerRecomputedCost(const ModelConfig& config, v1::TapePolicy policy, int64_t tp = 1);
// Returns what the backward of rows of which only K and V are computed recomputes: its products alone.
BlockCost KeyValueRecomputedCost(const ModelConfig& config, v1::TapePolicy policy);

}  // namespace stemma
