// Splitting a fused product into heads, QK-norm and rotary embedding, forward and backward: a team per row and head.
// Private to worker/backend/cuda.
//
//   forward   out = rotate(x · rstd · weight) for q and k, a copy for v; the first half's partner is the second half
//   backward  the transposed rotation, then RMSNorm's backward over the head
//
// Bytes that a row of J = (H + 2K) E columns of S bytes must move: forward 2 J S; backward 2 J S (dq, dk, dv in; dqkv
// out; dk and dv 4 bytes where they are sums), with QK-norm (H + K) E S more for x. With QK-norm also 4 (H + K) of
// rstd. Angles, weights and positions stay in a cache. Between its two passes a head stays in registers where a thread
// has one pack of each half (heads up to 128 in bf16); what is beyond is read again, from a cache.
#pragma once

#include "worker/backend/cuda/kernels/attention_head_rows.h"
#include "worker/backend/cuda/kernels/norm.h"

namespace stemma::worker::cuda {

template <typename T>
struct QkvForwardArgs {
  const T* qkv_TJ;
  const int64_t* positions_T;
  const float *cos_PE, *sin_PE;      // [P, E/2]
  const T *q_weight_E, *k_weight_E;  // null: no QK-norm
  float eps;
  StridedHeads<T> q_HTE, k_TKE, v_TKE;
  float* rstd_TJ;  // [T, H + K]; with QK-norm
  int64_t rows, num_heads, num_kv_heads, head_size;
};

// T: run dtype; G: dtype of dk and dv.
template <typename T, typename G>
struct QkvBackwardArgs {
  StridedHeads<const T> dq_HTE;
  StridedHeads<const G> dk_TKE, dv_TKE;
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

// A head of a row of a fused product.
struct HeadItem {
  int64_t row;
  int64_t head;    // of its kind
  int64_t slot;    // among the q heads, k heads and v heads of the row
  int64_t column;  // where it begins in the product
};

// Calls f(item) for each head of one kind (q, k or v) that is the team's, over all rows. `a`: either direction's
// arguments; `first_slot`: of the kind. It divides once and steps from there: 64-bit divisions for every head take a
// device longer than the head. Each kind has a loop of its own, so that sums of one kind at a time take registers.
template <typename Args, typename Team, typename F>
STEMMA_DEVICE void ForHeads(const Team& team, const Args& a, int64_t first_slot, int64_t heads, const F& f) {
  if (heads == 0) return;
  const int64_t slots = a.num_heads + 2 * a.num_kv_heads;
  const int64_t row_step = team.count() / heads, head_step = team.count() - row_step * heads;
  int64_t row = team.index() / heads, head = team.index() - row * heads;
  while (row < a.rows) {
    const int64_t slot = first_slot + head;
    f(HeadItem{row, head, slot, (row * slots + slot) * a.head_size});
    row += row_step;
    head += head_step;
    if (head >= heads) {
      head -= heads;
      ++row;
    }
  }
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

// `weight`: null, no QK-norm.
template <typename T, int V, typename Team>
STEMMA_DEVICE void NormAndRotateHead(Team& team, const QkvForwardArgs<T>& a, const HeadItem& item, const T* weight,
                                     T* out) {
  const T* x = a.qkv_TJ + item.column;
  const int64_t half = a.head_size / 2, angle = a.positions_T[item.row] * half;
  Pack<T, V> kept_low = {}, kept_high = {};
  float squares = 0;
  ForPacks<V, 1>(
      team, half,
      [&](int, int64_t i) {
        kept_low = Load<V>(x + i);
        kept_high = Load<V>(x + half + i);
        squares += SumOfSquares<T, V>(kept_low) + SumOfSquares<T, V>(kept_high);
      },
      [&](int64_t i) { squares += SumOfSquares<T, V>(Load<V>(x + i)) + SumOfSquares<T, V>(Load<V>(x + half + i)); });
  float rstd = 1;
  if (weight != nullptr) {
    rstd = RstdOf(team.Sum(squares), a.head_size, a.eps);
    if (team.rank() == 0) a.rstd_TJ[item.row * (a.num_heads + a.num_kv_heads) + item.slot] = rstd;
  }
  const auto write = [&](const Pack<T, V>& x_low, const Pack<T, V>& x_high, int64_t i) {
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
    const Pack<float, V> c = Load<V>(a.cos_PE + angle + i), s = Load<V>(a.sin_PE + angle + i);
    float out_low[V], out_high[V];
    STEMMA_UNROLL
    for (int j = 0; j < V; ++j) {
      out_low[j] = low[j] * At(c, j) - high[j] * At(s, j);
      out_high[j] = high[j] * At(c, j) + low[j] * At(s, j);
    }
    Store<T, V>(out_low, out + i);
    Store<T, V>(out_high, out + half + i);
  };
  ForPacks<V, 1>(
      team, half, [&](int, int64_t i) { write(kept_low, kept_high, i); },
      [&](int64_t i) { write(Load<V>(x + i), Load<V>(x + half + i), i); });
}

template <typename T, int V, typename Team>
STEMMA_DEVICE void QkvForward(Team& team, const QkvForwardArgs<T>& a) {
  ForHeads(team, a, 0, a.num_heads, [&](const HeadItem& item) {
    NormAndRotateHead<T, V>(team, a, item, a.q_weight_E, a.q_HTE.Row(item.head, item.row));
  });
  ForHeads(team, a, a.num_heads, a.num_kv_heads, [&](const HeadItem& item) {
    NormAndRotateHead<T, V>(team, a, item, a.k_weight_E, a.k_TKE.Row(item.head, item.row));
  });
  ForHeads(team, a, a.num_heads + a.num_kv_heads, a.num_kv_heads, [&](const HeadItem& item) {
    CopyHead<V>(team, a.head_size, a.qkv_TJ + item.column, a.v_TKE.Row(item.head, item.row));
  });
}

// One row's cosines and sines, half a head of them.
struct HeadAngles {
  const float *cos, *sin;
  int64_t half;
};

// The gradient before the rotation, of a pack of both halves.
template <int V, typename G>
STEMMA_DEVICE void UnrotatePack(const G* d, const HeadAngles& angles, int64_t i, float (&low)[V], float (&high)[V]) {
  const Pack<G, V> a = Load<V>(d + i), b = Load<V>(d + angles.half + i);
  const Pack<float, V> c = Load<V>(angles.cos + i), s = Load<V>(angles.sin + i);
  STEMMA_UNROLL
  for (int j = 0; j < V; ++j) {
    low[j] = At(a, j) * At(c, j) + At(b, j) * At(s, j);
    high[j] = At(b, j) * At(c, j) - At(a, j) * At(s, j);
  }
}

// The transposed rotation of a head without QK-norm.
template <int V, typename T, typename Team, typename D>
STEMMA_DEVICE void UnrotateHead(const Team& team, const HeadAngles& angles, const D* d, T* out) {
  ForEachPack<V>(team, angles.half, [&](int64_t i) {
    float low[V], high[V];
    UnrotatePack<V>(d, angles, i, low, high);
    Store<T, V>(low, out + i);
    Store<T, V>(high, out + angles.half + i);
  });
}

// Whether heads have a norm, and where a thread of the backward keeps its sums for the norm's weight: in registers,
// where it has at most one pack of each half of a head, or in the team's shared memory. One kernel for both would
// need the registers of both.
enum class QkNorm { kNone, kOnePack, kPacks };

// Returns which it is for a team of so many threads that take V elements at a time.
inline QkNorm QkNormOf(bool norm, int64_t head_size, int64_t threads, int64_t v) {
  if (!norm) return QkNorm::kNone;
  return head_size <= 2 * threads * v ? QkNorm::kOnePack : QkNorm::kPacks;
}

// What a thread adds up for the weights of QK-norm over a pack of each half of a head.
template <int V>
struct HeadSums {
  float low[V] = {}, high[V] = {};
};

// One head with QK-norm, and where its packs are.
template <typename T, typename D>
struct NormedHead {
  const D* d;
  const T *x, *weight;
  T* out;
  HeadAngles angles;
  float rstd;
  STEMMA_DEVICE int64_t half() const { return angles.half; }
};

// A pack of both halves of a head: the gradient before the rotation, and the operands of QK-norm's backward.
template <typename T, int V>
struct HeadPacks {
  float low[V], high[V];
  Pack<T, V> x_low, x_high;
};

template <int V, typename T, typename D>
STEMMA_DEVICE HeadPacks<T, V> LoadHeadPacks(const NormedHead<T, D>& head, int64_t i) {
  HeadPacks<T, V> packs;
  UnrotatePack<V>(head.d, head.angles, i, packs.low, packs.high);
  packs.x_low = Load<V>(head.x + i);
  packs.x_high = Load<V>(head.x + head.half() + i);
  return packs;
}

// Returns Σ dy · weight · x of the packs.
template <typename T, int V, typename D>
STEMMA_DEVICE float HeadDot(const NormedHead<T, D>& head, const HeadPacks<T, V>& packs, int64_t i) {
  const Pack<T, V> low = Load<V>(head.weight + i), high = Load<V>(head.weight + head.half() + i);
  float dot = 0;
  STEMMA_UNROLL
  for (int j = 0; j < V; ++j) {
    dot += packs.low[j] * At(low, j) * At(packs.x_low, j);
    dot += packs.high[j] * At(high, j) * At(packs.x_high, j);
  }
  return dot;
}

// Adds dy · x̂ of a pack to `sums`, and makes dy the gradient of x. `mean` is mean(dy w x) rstd².
template <typename T, int V>
STEMMA_DEVICE void HeadNormGradient(const Pack<T, V>& x, const Pack<T, V>& weight, float rstd, float mean,
                                    float (&sums)[V], float (&dy)[V]) {
  STEMMA_UNROLL
  for (int j = 0; j < V; ++j) {
    sums[j] += dy[j] * (At(x, j) * rstd);
    dy[j] = rstd * (dy[j] * At(weight, j) - At(x, j) * mean);
  }
}

template <typename T, int V, typename D>
STEMMA_DEVICE void WriteHeadGradient(const NormedHead<T, D>& head, float mean, int64_t i, HeadPacks<T, V>& packs,
                                     HeadSums<V>& sums) {
  HeadNormGradient<T, V>(packs.x_low, Load<V>(head.weight + i), head.rstd, mean, sums.low, packs.low);
  HeadNormGradient<T, V>(packs.x_high, Load<V>(head.weight + head.half() + i), head.rstd, mean, sums.high, packs.high);
  Store<T, V>(packs.low, head.out + i);
  Store<T, V>(packs.high, head.out + head.half() + i);
}

template <int V>
STEMMA_DEVICE void StoreHeadSums(const HeadSums<V>& from, float* to, int64_t half) {
  Store<float, V, Memory::kShared>(from.low, to);
  Store<float, V, Memory::kShared>(from.high, to + half);
}

template <int V>
STEMMA_DEVICE HeadSums<V> LoadHeadSums(const float* from, int64_t half) {
  const Pack<float, V> low = Load<V>(from), high = Load<V>(from + half);
  HeadSums<V> sums;
  STEMMA_UNROLL
  for (int j = 0; j < V; ++j) sums.low[j] = At(low, j), sums.high[j] = At(high, j);
  return sums;
}

// Returns the head's mean(dy w x) rstd² of each thread's part of the sum.
template <typename T, typename D, typename Team>
STEMMA_DEVICE float HeadMean(Team& team, const NormedHead<T, D>& head, float dot) {
  return team.Sum(dot) * head.rstd * head.rstd / static_cast<float>(2 * head.half());
}

// Reads a head once, for QkNorm::kOnePack.
template <typename T, int V, typename Team, typename D>
STEMMA_DEVICE void HeadNormBackward(Team& team, const NormedHead<T, D>& head, HeadSums<V>& sums) {
  const int64_t i = static_cast<int64_t>(team.rank()) * V;
  const bool has_pack = i < head.half();
  HeadPacks<T, V> packs = {};
  float dot = 0;
  if (has_pack) {
    packs = LoadHeadPacks<V>(head, i);
    dot = HeadDot(head, packs, i);
  }
  const float mean = HeadMean(team, head, dot);
  if (has_pack) WriteHeadGradient(head, mean, i, packs, sums);
}

// Reads a head two times, the second time from a cache, for QkNorm::kPacks.
template <typename T, int V, typename Team, typename D>
STEMMA_DEVICE void HeadNormBackward(Team& team, const NormedHead<T, D>& head, float* sums) {
  float dot = 0;
  ForEachPack<V>(team, head.half(), [&](int64_t i) { dot += HeadDot(head, LoadHeadPacks<V>(head, i), i); });
  const float mean = HeadMean(team, head, dot);
  ForEachPack<V>(team, head.half(), [&](int64_t i) {
    HeadPacks<T, V> packs = LoadHeadPacks<V>(head, i);
    HeadSums<V> of_pack = LoadHeadSums<V>(sums + i, head.half());
    WriteHeadGradient(head, mean, i, packs, of_pack);
    StoreHeadSums(of_pack, sums + i, head.half());
  });
}

// The heads of q or of k: their slots of a row, their gradients and, with QK-norm, their weight and the team's own [E]
// sums of its gradient in shared memory, which are written.
template <typename T, typename D>
struct HeadsOfKind {
  int64_t first_slot, count;
  StridedHeads<const D> d_HTE;
  const T* weight;
  float* sums;
};

// A thread touches the same columns of the sums in every row, so that no barrier is needed.
template <int V, QkNorm kNorm, typename T, typename G, typename D, typename Team>
STEMMA_DEVICE void HeadsBackward(Team& team, const QkvBackwardArgs<T, G>& a, const HeadsOfKind<T, D>& heads) {
  float* const sums = heads.sums;
  const int64_t half = a.head_size / 2;
  HeadSums<V> own;
  if constexpr (kNorm == QkNorm::kPacks) {
    ForEachPack<V>(team, half, [&](int64_t i) { StoreHeadSums(own, sums + i, half); });
  }
  ForHeads(team, a, heads.first_slot, heads.count, [&](const HeadItem& item) {
    const int64_t first_angle = a.positions_T[item.row] * half;
    const HeadAngles angles = {a.cos_PE + first_angle, a.sin_PE + first_angle, half};
    const D* d = heads.d_HTE.Row(item.head, item.row);
    if constexpr (kNorm == QkNorm::kNone) {
      UnrotateHead<V>(team, angles, d, a.dqkv_TJ + item.column);
    } else {
      const float rstd = a.rstd_TJ[item.row * (a.num_heads + a.num_kv_heads) + item.slot];
      const NormedHead<T, D> head = {d, a.qkv_TJ + item.column, heads.weight, a.dqkv_TJ + item.column, angles, rstd};
      if constexpr (kNorm == QkNorm::kOnePack) HeadNormBackward<T, V>(team, head, own);
      if constexpr (kNorm == QkNorm::kPacks) HeadNormBackward<T, V>(team, head, sums);
    }
  });
  if constexpr (kNorm == QkNorm::kOnePack) {
    ForEachPack<V>(team, half, [&](int64_t i) { StoreHeadSums(own, sums + i, half); });
  }
}

// `sums`: with QK-norm, the team's own [2, E] sums of dq_weight and dk_weight in shared memory, written.
template <typename T, typename G, int V, QkNorm kNorm, typename Team>
STEMMA_DEVICE void QkvBackward(Team& team, const QkvBackwardArgs<T, G>& a, float* sums) {
  float* const k_sums = kNorm == QkNorm::kNone ? nullptr : sums + a.head_size;
  HeadsBackward<V, kNorm>(team, a, HeadsOfKind<T, T>{0, a.num_heads, a.dq_HTE, a.q_weight_E, sums});
  HeadsBackward<V, kNorm>(team, a, HeadsOfKind<T, G>{a.num_heads, a.num_kv_heads, a.dk_TKE, a.k_weight_E, k_sums});
  ForHeads(team, a, a.num_heads + a.num_kv_heads, a.num_kv_heads, [&](const HeadItem& item) {
    CopyHead<V>(team, a.head_size, a.dv_TKE.Row(item.head, item.row), a.dqkv_TJ + item.column);
  });
}

}  // namespace stemma::worker::cuda
