// Attention of batched heads on CPU, forward and backward, in blocks: scores of a block of queries and keys, an online
// softmax over the key blocks, and in backward the probabilities again from the log-sum-exp that is given.
// Called by worker/backend/cpu/attention_kernel.cc. Raw pointers; heads are split over LibTorch's threads.
//
// Written here because LibTorch's CPU operator reaches less than a third of the GEMM rate on causal spans of a few
// hundred rows and knows no grouped heads, so that each query head's dK and dV went to memory (ops_bench). Products are
// our own tiles (tile_product.h), not BLAS calls: a tile above the diagonal is left out, and scores are written as the
// next product reads them. On spans of up to 512 rows that is twice as fast as BLAS on the same blocks.
//
// Query head (k, i), i < group, belongs to kv head k. Always holds: scores above the diagonal are neither read nor
// counted; what is added to dk and dv is summed over the group; results do not depend on the number of threads.
#pragma once

#include <cstdint>

namespace stemma::worker::kernels {

struct AttentionLoops;

// Those of the instruction set that the other row kernels use too.
const AttentionLoops& ChosenAttentionLoops();

struct AttentionSize {
  int64_t batch, num_kv_heads, group, queries, keys, head_size;
  bool causal;  // query t sees keys 0 … t; queries == keys
  double scale;
};

// Row t of head (k, i) of batch entry b lies at data + b·batch + k·kv + i·group + t·row; its elements are adjacent.
template <typename T>
struct AttentionRows {
  T* data;
  int64_t batch, kv, group, row;
  T* At(int64_t b, int64_t k, int64_t i, int64_t t) const { return data + b * batch + k * kv + i * group + t * row; }
};

// T, what is computed in, and Kv, what keys and values are held in: float and float, float and Bf16, double and double.
// Keys and values are widened by the block, so that those of a long prefix need no second copy.

// Elements of scratch that a call needs, for all of its threads; uninitialised.
int64_t AttentionForwardScratch(const AttentionSize& size);
int64_t AttentionBackwardScratch(const AttentionSize& size);

template <typename T, typename Kv>
struct AttentionForwardArgs {
  AttentionSize size;
  AttentionRows<const T> q;
  AttentionRows<const Kv> k, v;  // group is not read
  AttentionRows<T> out, lse;     // lse: one element a row, natural log, scale included
  T* scratch;
  const AttentionLoops* loops = &ChosenAttentionLoops();
};

template <typename T, typename Kv>
struct AttentionBackwardArgs {
  AttentionSize size;
  AttentionRows<const T> dout, q, out, lse;
  AttentionRows<const Kv> k, v;
  AttentionRows<T> dq;      // overwritten
  AttentionRows<T> dk, dv;  // added to
  T* scratch;
  const AttentionLoops* loops = &ChosenAttentionLoops();
};

template <typename T, typename Kv>
void AttentionForward(const AttentionForwardArgs<T, Kv>& args);
template <typename T, typename Kv>
void AttentionBackward(const AttentionBackwardArgs<T, Kv>& args);

}  // namespace stemma::worker::kernels
