// The loops over a block of scores of one instruction set, as a table of functions; private to worker/backend/cpu. Each
// is free of threads and of LibTorch.
//
// Scores lie transposed, [keys][queries]: one vector holds queries, so that maxima and sums of a query's scores need no
// sum over lanes, and every product reads scores as they lie. Other operands are packed first, in panels as wide as the
// instruction set likes, at most kAttentionPanel elements (common/cost/kernel_blocks.h, which says what all of it
// takes).
#pragma once

#include <cstdint>
#include <vector>

#include "worker/backend/cpu/rowwise.h"

namespace stemma::worker::kernels {

// A block of scores. Query r sees the first `first_visible + r` keys where the block is on the diagonal, all of them
// elsewhere. Where no query of a vector sees a key, scores are not written and not read.
template <typename T>
struct ScoreBlock {
  T* scores;  // [keys][stride]; query r of key c at scores[c * stride + r]
  int64_t queries, keys, stride;
  bool diagonal;
  int64_t first_visible;
  T scale;
};

// Rows of head_size elements, `row` elements apart; keys and values may be held in another type.
template <typename T>
struct StridedRows {
  T* data;
  int64_t row;
};

// What the forward keeps of a block's queries from one block of keys to the next.
template <typename T>
struct SoftmaxState {
  bool first;  // no key was seen before: max, sum and out are not read
  T *max, *sum;
  StridedRows<T> out;  // rescaled to a new maximum
  int64_t head_size;
};

// What the backward reads of a block's queries, and where it puts the gradients of their scores.
template <typename T>
struct BackwardOperands {
  const T *q, *dout;  // packed transposed
  const T *lse, *delta;
  T* dp;  // lies as the block's scores
  int64_t head_size;
};

template <typename T>
struct AttentionLoopsOf {
  // Packs `count` rows as the right-hand operand of a sum over rows.
  void (*pack)(StridedRows<const T> rows, int64_t count, int64_t head_size, T* packed);
  void (*pack_bf16)(StridedRows<const Bf16> rows, int64_t count, int64_t head_size, T* packed);
  // Packs `count` rows as the right-hand operand of a sum over the head's elements.
  void (*pack_transposed)(StridedRows<const T> rows, int64_t count, int64_t head_size, T* packed);

  // scores[c][r] becomes e^(scale (Σ_e key_c[e] query_r[e] - max_r)), 0 where not visible; max and sum are those of all
  // keys so far. Keys packed, queries packed transposed.
  void (*softmax)(const ScoreBlock<T>& block, const T* keys, const T* queries, const SoftmaxState<T>& softmax);
  // scores[c][r] becomes p = e^(scale · Σ_e key_c[e] query_r[e] - lse_r), dp becomes scale · p (dO_r·value_c -
  // delta_r); both 0 where not visible. Keys and values packed.
  void (*backward)(const ScoreBlock<T>& block, const T* keys, const T* values, const BackwardOperands<T>& backward);
  // out_r (+)= Σ_c scores[c][r] x_c; x packed.
  void (*sum_over_keys)(const ScoreBlock<T>& block, const T* x, int64_t head_size, bool add, StridedRows<T> out);
  // out_c += Σ_r scores[c][r] x_r; x packed.
  void (*sum_over_queries)(const ScoreBlock<T>& block, const T* x, int64_t head_size, StridedRows<T> out);

  // out /= sum; lse = scale · max + log sum, one element a row.
  void (*normalize)(const SoftmaxState<T>& softmax, T scale, int64_t rows, StridedRows<T> lse);
  // delta_r = Σ dout out.
  void (*delta)(StridedRows<const T> dout, StridedRows<const T> out, int64_t rows, int64_t head_size, T* delta);
};

struct AttentionLoops {
  const char* name;
  AttentionLoopsOf<float> f32;
  AttentionLoopsOf<double> f64;
};

namespace isa_baseline {
extern const AttentionLoops kAttentionLoops;
}
#if defined(STEMMA_HAVE_X86_LEVELS)
namespace isa_v3 {
extern const AttentionLoops kAttentionLoops;
}
namespace isa_v4 {
extern const AttentionLoops kAttentionLoops;
}
#endif

// One for each of SupportedTables(), in their order; never empty.
std::vector<const AttentionLoops*> SupportedAttentionLoops();

}  // namespace stemma::worker::kernels
