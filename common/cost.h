// Exact FLOPs of a plan, and the bytes it needs above weights, gradients and optimizer state. Torch-free arithmetic from
// shapes: the planner decides by it, the worker's tests hold it to measured bytes.
//
// FLOPs: 2 per multiply-add; linear layers 2·params forward and 4·params backward per row; attention 4·H·E forward and
// 8·H·E backward per (query, key) pair, causal pairs counted exactly; the head on suffix rows only. Both schedules are
// pruned alike: the last response token is not run, and in the last layer rows before the last prompt token compute K/V
// only.
#pragma once

#include <cstdint>
#include <span>

#include "common/model_config.h"

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

}  // namespace stemma
