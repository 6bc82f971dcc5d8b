// Splitting a fused product into heads, QK-norm and rotary embedding, forward and backward: a team per row and head.
// Private to worker/backend/cuda.
//
//   forward   out = rotate(x · rstd · weight) for q and k, a copy for v; the first half's partner is the second half
//   backward  the transposed rotation, then RMSNorm's backward over the head
//
// Bytes that a row of J = (H + 2K) E columns of S bytes must move: forward 2 J S; backward 2 J S (dq, dk, dv in; dqkv
// out; dk and dv 4 bytes where they are sums), with QK-norm (H + K) E S more for x. With QK-norm also 4 (H + K) of
// rstd. Angles, weights and positions stay in a cache, and so does a head's row between its two passes.
#pragma once

#include "worker/backend/cuda/kernels/head_rows.h"
#include "worker/backend/cuda/kernels/norm.h"

namespace stemma::worker::cuda {

template <typename T>
struct QkvForwardArgs {
  const T* qkv_TJ;
  const int64_t* positions_T;
  const float *cos_PE, *sin_PE;      // [P, E/2]
  const T *q_weight_E, *k_weight_E;  // null: no QK-norm
  float eps;
  HeadRows<T> q_HTE, k_TKE, v_TKE;
  float* rstd_TJ;  // [T, H + K]; with QK-norm
  int64_t rows, num_heads, num_kv_heads, head_size;
};

// T: run dtype; G: dtype of dk and dv.
template <typename T, typename G>
struct QkvBackwardArgs {
  HeadRows<const T> dq_HTE;
  HeadRows<const G> dk_TKE, dv_TKE;
  const int64_t* positions_T;
  const float *cos_PE, *sin_PE;
  const T *q_weight_E, *k_weight_E;  // null: no QK-norm, and the next two are not read
  const T* qkv_TJ;
  const float* rstd_TJ;
  T* dqkv_TJ;
  int64_t rows, num_heads, num_kv_heads, head_size;
};

template <typename T>
bool UsesVectors(const QkvForwardArgs<T>& a) {
  return a.head_size % (2 * kVector<T>) == 0 && RowsAligned(a.q_HTE) && RowsAligned(a.k_TKE) && RowsAligned(a.v_TKE) &&
         AllAligned(a.qkv_TJ, a.cos_PE, a.sin_PE, a.q_weight_E, a.k_weight_E);
}
template <typename T, typename G>
bool UsesVectors(const QkvBackwardArgs<T, G>& a) {
  return a.head_size % (2 * kVector<T>) == 0 && RowsAligned(a.dq_HTE) && RowsAligned(a.dk_TKE) &&
         RowsAligned(a.dv_TKE) && AllAligned(a.cos_PE, a.sin_PE, a.q_weight_E, a.k_weight_E, a.qkv_TJ, a.dqkv_TJ);
}

// Which row and head the item-th column block of a fused product is.
struct HeadItem {
  int64_t row, slot;  // slot: q heads, k heads, v heads
  bool is_q, is_v;
  int64_t head;  // of its kind
};

STEMMA_DEVICE HeadItem HeadItemOf(int64_t item, int64_t num_heads, int64_t num_kv_heads) {
  const int64_t slots = num_heads + 2 * num_kv_heads, row = item / slots, slot = item - row * slots;
  const bool is_q = slot < num_heads, is_v = slot >= num_heads + num_kv_heads;
  return {row, slot, is_q, is_v, is_q ? slot : slot - num_heads - (is_v ? num_kv_heads : 0)};
}

// Converts a row of a head.
template <int V, typename From, typename To, typename Team>
STEMMA_DEVICE void CopyHead(const Team& team, int64_t head_size, const From* from, To* to) {
  ForEachPack<V>(team, head_size, [&](int64_t i) {
    const Pack<From, V> pack = Load<V>(from + i);
    float out[V];
    STEMMA_UNROLL
    for (int j = 0; j < V; ++j) out[j] = At(pack, j);
    Store<To, V>(out, to + i);
  });
}

template <typename T, int V, typename Team>
STEMMA_DEVICE void NormAndRotateHead(Team& team, const QkvForwardArgs<T>& a, const HeadItem& item, const T* x, T* out) {
  const int64_t half = a.head_size / 2;
  const T* weight = item.is_q ? a.q_weight_E : a.k_weight_E;
  float rstd = 1;
  if (weight != nullptr) {
    float squares = 0;
    ForEachPack<V>(team, a.head_size, [&](int64_t i) { squares += SumOfSquares<T, V>(Load<V>(x + i)); });
    rstd = RstdOf(team.Sum(squares), a.head_size, a.eps);
    if (team.rank() == 0) a.rstd_TJ[item.row * (a.num_heads + a.num_kv_heads) + item.slot] = rstd;
  }
  const float *cos = a.cos_PE + a.positions_T[item.row] * half, *sin = a.sin_PE + a.positions_T[item.row] * half;
  ForEachPack<V>(team, half, [&](int64_t i) {
    const Pack<T, V> x_low = Load<V>(x + i), x_high = Load<V>(x + half + i);
    float low[V], high[V];
    STEMMA_UNROLL
    for (int j = 0; j < V; ++j) low[j] = At(x_low, j), high[j] = At(x_high, j);
    if (weight != nullptr) {
      const Pack<T, V> w_low = Load<V>(weight + i), w_high = Load<V>(weight + half + i);
      STEMMA_UNROLL
      for (int j = 0; j < V; ++j) {
        low[j] = low[j] * rstd * At(w_low, j);
        high[j] = high[j] * rstd * At(w_high, j);
      }
    }
    const Pack<float, V> c = Load<V>(cos + i), s = Load<V>(sin + i);
    float out_low[V], out_high[V];
    STEMMA_UNROLL
    for (int j = 0; j < V; ++j) {
      out_low[j] = low[j] * At(c, j) - high[j] * At(s, j);
      out_high[j] = high[j] * At(c, j) + low[j] * At(s, j);
    }
    Store<T, V>(out_low, out + i);
    Store<T, V>(out_high, out + half + i);
  });
}

template <typename T, int V, typename Team>
STEMMA_DEVICE void QkvForward(Team& team, const QkvForwardArgs<T>& a) {
  const int64_t items = a.rows * (a.num_heads + 2 * a.num_kv_heads);
  for (int64_t n = team.index(); n < items; n += team.count()) {
    const HeadItem item = HeadItemOf(n, a.num_heads, a.num_kv_heads);
    const T* x = a.qkv_TJ + n * a.head_size;
    if (item.is_v) {
      CopyHead<V>(team, a.head_size, x, a.v_TKE.Row(item.head, item.row));
    } else {
      const HeadRows<T>& rows = item.is_q ? a.q_HTE : a.k_TKE;
      NormAndRotateHead<T, V>(team, a, item, x, rows.Row(item.head, item.row));
    }
  }
}

// The gradient before the rotation, of a pack of both halves.
template <int V, typename G>
STEMMA_DEVICE void UnrotatePack(const G* d, int64_t half, const float* cos, const float* sin, int64_t i,
                                float (&low)[V], float (&high)[V]) {
  const Pack<G, V> a = Load<V>(d + i), b = Load<V>(d + half + i);
  const Pack<float, V> c = Load<V>(cos + i), s = Load<V>(sin + i);
  STEMMA_UNROLL
  for (int j = 0; j < V; ++j) {
    low[j] = At(a, j) * At(c, j) + At(b, j) * At(s, j);
    high[j] = At(b, j) * At(c, j) - At(a, j) * At(s, j);
  }
}

// Adds dy · x̂ of a pack to a team's own sums, and makes dy the gradient of x. `mean` is mean(dy w x) rstd².
template <typename T, int V>
STEMMA_DEVICE void HeadNormGradient(const Pack<T, V>& x, const Pack<T, V>& weight, float rstd, float mean, float* sums,
                                    float (&dy)[V]) {
  const Pack<float, V> before = Load<V>(sums);
  float after[V];
  STEMMA_UNROLL
  for (int j = 0; j < V; ++j) {
    after[j] = At(before, j) + dy[j] * (At(x, j) * rstd);
    dy[j] = rstd * (dy[j] * At(weight, j) - At(x, j) * mean);
  }
  Store<float, V, Memory::kShared>(after, sums);
}

template <typename T, typename G, int V, typename Team, typename D>
STEMMA_DEVICE void HeadBackward(Team& team, const QkvBackwardArgs<T, G>& a, const HeadItem& item, const D* d,
                                int64_t column, float* sums) {
  const int64_t half = a.head_size / 2;
  const float *cos = a.cos_PE + a.positions_T[item.row] * half, *sin = a.sin_PE + a.positions_T[item.row] * half;
  const T* weight = item.is_q ? a.q_weight_E : a.k_weight_E;
  T* out = a.dqkv_TJ + column;
  if (weight == nullptr) {
    ForEachPack<V>(team, half, [&](int64_t i) {
      float low[V], high[V];
      UnrotatePack<V>(d, half, cos, sin, i, low, high);
      Store<T, V>(low, out + i);
      Store<T, V>(high, out + half + i);
    });
    return;
  }
  const T* x = a.qkv_TJ + column;
  float* own = sums + (item.is_q ? 0 : a.head_size);
  float dot = 0;
  ForEachPack<V>(team, half, [&](int64_t i) {
    float low[V], high[V];
    UnrotatePack<V>(d, half, cos, sin, i, low, high);
    const Pack<T, V> x_low = Load<V>(x + i), x_high = Load<V>(x + half + i);
    const Pack<T, V> w_low = Load<V>(weight + i), w_high = Load<V>(weight + half + i);
    STEMMA_UNROLL
    for (int j = 0; j < V; ++j) {
      dot += low[j] * At(w_low, j) * At(x_low, j);
      dot += high[j] * At(w_high, j) * At(x_high, j);
    }
  });
  const float rstd = a.rstd_TJ[item.row * (a.num_heads + a.num_kv_heads) + item.slot];
  const float mean = team.Sum(dot) * rstd * rstd / static_cast<float>(a.head_size);
  ForEachPack<V>(team, half, [&](int64_t i) {
    float low[V], high[V];
    UnrotatePack<V>(d, half, cos, sin, i, low, high);
    HeadNormGradient<T, V>(Load<V>(x + i), Load<V>(weight + i), rstd, mean, own + i, low);
    HeadNormGradient<T, V>(Load<V>(x + half + i), Load<V>(weight + half + i), rstd, mean, own + half + i, high);
    Store<T, V>(low, out + i);
    Store<T, V>(high, out + half + i);
  });
}

// `sums`: with QK-norm, the team's own [2, E] sums of dq_weight and dk_weight in shared memory, written. A thread
// touches the same columns of them in every row, so that no barrier is needed.
template <typename T, typename G, int V, typename Team>
STEMMA_DEVICE void QkvBackward(Team& team, const QkvBackwardArgs<T, G>& a, float* sums) {
  if (a.k_weight_E != nullptr) {
    const float zeros[V] = {};
    for (int64_t part = 0; part < 4; ++part) {
      ForEachPack<V>(team, a.head_size / 2,
                     [&](int64_t i) { Store<float, V, Memory::kShared>(zeros, sums + part * (a.head_size / 2) + i); });
    }
  }
  const int64_t items = a.rows * (a.num_heads + 2 * a.num_kv_heads);
  for (int64_t n = team.index(); n < items; n += team.count()) {
    const HeadItem item = HeadItemOf(n, a.num_heads, a.num_kv_heads);
    if (item.is_v) {
      CopyHead<V>(team, a.head_size, a.dv_TKE.Row(item.head, item.row), a.dqkv_TJ + n * a.head_size);
    } else if (item.is_q) {
      HeadBackward<T, G, V>(team, a, item, a.dq_HTE.Row(item.head, item.row), n * a.head_size, sums);
    } else {
      HeadBackward<T, G, V>(team, a, item, a.dk_TKE.Row(item.head, item.row), n * a.head_size, sums);
    }
  }
}

}  // namespace stemma::worker::cuda
