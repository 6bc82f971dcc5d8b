// Joining the attention of the same queries to two disjoint sets of keys, and adding parts of a gradient: a team per
// row of a head. Private to worker/backend/cuda.
//
//   merge      w = σ(l_a - l_b);  o = o_b + w (o_a - o_b);  l = l_b + softplus(l_a - l_b)
//   add_parts  sum += Σ_n parts[n]
//
// Bytes that a row of a head of E elements of S bytes must move: merge 3 E S + 12; add_parts N E S + 8 E.
#pragma once

#include "worker/backend/cuda/kernels/attention_head_rows.h"
#include "worker/backend/cuda/kernels/packs.h"

namespace stemma::worker::cuda {

// The log-sum-exp of head h and row t lies at data[h · head_stride + t · row_stride].
struct LseRows {
  float* data;
  int64_t head_stride, row_stride;
};

template <typename T>
struct MergeArgs {
  StridedHeads<const T> a_THE, b_THE;
  LseRows lse_a_HT, lse_b_HT;
  StridedHeads<T> o_THE;  // written
  LseRows lse_HT;         // written
  int64_t rows, num_heads, head_size;
};

template <typename T>
struct AddPartsArgs {
  StridedHeads<const T> parts_CKE;  // of the first part
  int64_t part_stride, num_parts;
  StridedHeads<float> sum_CKE;  // added to
  int64_t rows, num_heads, head_size;
};

template <typename T>
bool UsesVectors(const MergeArgs<T>& a) {
  return a.head_size % kVector<T> == 0 && RowsAligned(a.a_THE) && RowsAligned(a.b_THE) && RowsAligned(a.o_THE);
}
template <typename T>
bool UsesVectors(const AddPartsArgs<T>& a) {
  return a.head_size % kVector<T> == 0 && RowsAligned(a.parts_CKE) && a.part_stride % kVector<T> == 0 &&
         RowsAligned(a.sum_CKE);
}

template <typename T, int V, typename Team>
STEMMA_DEVICE void Merge(Team& team, const MergeArgs<T>& a) {
  for (int64_t n = team.index(); n < a.rows * a.num_heads; n += team.count()) {
    const int64_t t = n / a.num_heads, h = n - t * a.num_heads;
    const auto at = [&](const LseRows& lse) -> float& { return lse.data[h * lse.head_stride + t * lse.row_stride]; };
    const float lse_b = at(a.lse_b_HT), diff = at(a.lse_a_HT) - lse_b;
    const float small = Exp(-fabsf(diff)), larger = 1.0f / (1.0f + small);
    const float weight = diff < 0 ? small * larger : larger;
    const T *from_a = a.a_THE.Row(h, t), *from_b = a.b_THE.Row(h, t);
    T* to = a.o_THE.Row(h, t);
    ForEachPack<V>(team, a.head_size, [&](int64_t i) {
      const Pack<T, V> x = Load<V>(from_a + i), y = Load<V>(from_b + i);
      float out[V];
      STEMMA_UNROLL
      for (int j = 0; j < V; ++j) out[j] = At(y, j) + weight * (At(x, j) - At(y, j));
      Store<T, V>(out, to + i);
    });
    if (team.rank() == 0) at(a.lse_HT) = lse_b + fmaxf(diff, 0) + log1pf(small);
  }
}

template <typename T, int V, typename Team>
STEMMA_DEVICE void AddParts(Team& team, const AddPartsArgs<T>& a) {
  for (int64_t n = team.index(); n < a.rows * a.num_heads; n += team.count()) {
    const int64_t c = n / a.num_heads, k = n - c * a.num_heads;
    const T* parts = a.parts_CKE.Row(k, c);
    float* to = a.sum_CKE.Row(k, c);
    ForEachPack<V>(team, a.head_size, [&](int64_t i) {
      const Pack<float, V> before = Load<V>(to + i);
      float sum[V] = {};
      for (int64_t part = 0; part < a.num_parts; ++part) {
        const Pack<T, V> pack = Load<V>(parts + part * a.part_stride + i);
        STEMMA_UNROLL
        for (int j = 0; j < V; ++j) sum[j] += At(pack, j);
      }
      STEMMA_UNROLL
      for (int j = 0; j < V; ++j) sum[j] += At(before, j);
      Store<float, V>(sum, to + i);
    });
  }
}

}  // namespace stemma::worker::cuda
