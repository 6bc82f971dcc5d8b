// dweight[token] += dx, in row order wherever a token repeats: the CPU's sums, bit for bit. Rows of a token of -1,
// which is another rank's, are left out. Private to worker/backend/cuda.
//
// Tokens come sorted, with the row that each stood in; the sort is stable. A team takes a tile of columns of one
// token's rows. A row of D elements of S bytes moves D S (dx in); a distinct token 8 D (dweight in and out). No
// atomics.
#pragma once

#include "worker/backend/cuda/kernels/packs.h"

namespace stemma::worker::cuda {

template <typename T>
struct EmbeddingBackwardArgs {
  const int32_t* sorted_tokens_T;  // half the passes of a sort of 64 bits
  const int64_t* rows_T;           // rows_T[n]: the row of dx whose token is sorted_tokens_T[n]
  const T* dx_TD;
  float* dweight_VD;  // added to
  int64_t rows, width;
};

template <typename T>
bool UsesVectors(const EmbeddingBackwardArgs<T>& a) {
  return a.width % kVector<T> == 0 && AllAligned(a.dx_TD, a.dweight_VD);
}

// The most frequent tokens of a text stand in one of twenty of its rows: one after another, these would be waited for
// longer than all others together.
inline constexpr int kTokenRowsAtOnce = 4;

template <typename T, int V, typename Team>
STEMMA_DEVICE void EmbeddingBackward(Team& team, const EmbeddingBackwardArgs<T>& a) {
  ForPacksOfRows<V>(team, a.rows, a.width, [&](int64_t n, int64_t i) {
    const int32_t token = a.sorted_tokens_T[n];
    if (token < 0) return;
    if (n > 0 && a.sorted_tokens_T[n - 1] == token) return;  // whoever has the token's first row adds this one
    const auto is_of_token = [&](int64_t m) { return m < a.rows && a.sorted_tokens_T[m] == token; };
    float* weight = a.dweight_VD + token * a.width + i;
    const Pack<float, V> before = Load<V>(weight);
    float sum[V];
    STEMMA_UNROLL
    for (int j = 0; j < V; ++j) sum[j] = At(before, j);
    for (int64_t m = n; is_of_token(m); m += kTokenRowsAtOnce) {
      Pack<T, V> dx[kTokenRowsAtOnce] = {};
      STEMMA_UNROLL
      for (int r = 0; r < kTokenRowsAtOnce; ++r) {
        if (is_of_token(m + r)) dx[r] = Load<V>(a.dx_TD + a.rows_T[m + r] * a.width + i);
      }
      STEMMA_UNROLL
      for (int r = 0; r < kTokenRowsAtOnce; ++r) {
        if (!is_of_token(m + r)) break;
        STEMMA_UNROLL
        for (int j = 0; j < V; ++j) sum[j] += At(dx[r], j);
      }
    }
    Store<float, V>(sum, weight);
  });
}

}  // namespace stemma::worker::cuda
