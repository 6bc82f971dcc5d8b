// Exact FLOPs of a plan, and the bytes it needs above weights, gradients and optimizer state. Torch-free arithmetic
// from shapes: the planner decides by it, the worker's tests hold it to measured bytes.
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

// What bytes depend on beside the model's shape.
struct ByteShape {
  ModelConfig config;
  int64_t run_bytes = 4;         // of an element: weights and activations (bf16 2, fp32 4, fp64 8)
  int64_t accumulate_bytes = 4;  // of statistics, gradients, gK/gV (fp64 8, else 4)
  int64_t head_chunk_rows = 512;
  int64_t threads = 1;  // each has scratch in the attention kernel
};

// One microbatch of Phase B.
struct WaveShape {
  int64_t rows = 0;           // all rows, prefixes of dense trajectories included
  int64_t kv_only_rows = 0;   // rows before the last prompt token of dense trajectories
  int64_t ancestor_rows = 0;  // of the longest prefix that its rows attend to
};

// Above weights, gradients and optimizer state. A cluster's peak is
//   PrefixBytes + max(largest WaveBytes, PrefixBackwardBytes).
int64_t PrefixBytes(const ByteShape& shape, int64_t rows);          // hot set and tape, from Phase A to Phase C
int64_t PrefixBackwardBytes(const ByteShape& shape, int64_t rows);  // Phase C's working set
int64_t WaveBytes(const ByteShape& shape, const WaveShape& wave);   // tape and working set
// The same for a forward-only pass: K/V of the prefix, one layer's working set.
int64_t ForwardPrefixBytes(const ByteShape& shape, int64_t rows);
int64_t ForwardWaveBytes(const ByteShape& shape, const WaveShape& wave);

}  // namespace stemma
