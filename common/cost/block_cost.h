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
  kMlp,
  kHead,
};

struct BlockCost {
  double weights = 0;   // of its matrix products: 2 FLOPs of a row each forward, 4 backward
  double pairs = 0;     // of a (query, key) pair: 4 FLOPs each forward, 8 backward
  double elements = 0;  // that a row's norms, RoPE and SwiGLU touch forward; backward about twice as many

  BlockCost& operator+=(const BlockCost& other);
};

// `tp`: of several tensor-parallel ranks, each has a part of the rows whose width is the model's; `config` is then what
// one of them computes with (common/cost/rank_shape.h).
BlockCost ForwardCost(const ModelConfig& config, Block block, int64_t tp = 1);

// Returns what both blocks of a full layer cost.
BlockCost LayerForwardCost(const ModelConfig& config, int64_t tp = 1);
// Returns what their backward recomputes because the policy dropped it.
BlockCost LayerRecomputedCost(const ModelConfig& config, v1::TapePolicy policy, int64_t tp = 1);
// Returns what the backward of rows of which only K and V are computed recomputes: its products alone.
BlockCost KeyValueRecomputedCost(const ModelConfig& config, v1::TapePolicy policy);

}  // namespace stemma
