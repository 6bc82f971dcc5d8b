// RMSNorm, forward and backward, a team per row. Private to worker/backend/cuda.
//
//   forward   y = x · rstd · weight, rstd = (mean(x²) + eps)^-1/2
//   backward  dx = rstd (dy w - x̂ mean(dy w x̂)) + residual, x̂ = x rstd;  dweight += Σ_rows dy x̂
//
// Bytes that a row of D elements of S bytes must move: forward 2 D S + 4 (x in; y, rstd out); backward 3 D S + 4 (dy,
// x, rstd in; dx out), and D S more with a residual. Weights stay in a cache. Each team writes the sums of its rows to
// partials[index()], D fp32 per team; AddColumnSums (sums.h) adds these up in a fixed order: the result depends on the
// number of teams and on nothing else. No atomics.
#pragma once

#include "worker/backend/cuda/kernels/packs.h"

namespace stemma::worker::cuda {

template <typename T>
struct RmsNormForwardArgs {
  const T *x_TD, *weight_D;
  T* y_TD;
  float* rstd_T;
  int64_t rows, width;
  float eps;
};

template <typename T>
struct RmsNormBackwardArgs {
  const T *dy_TD, *x_TD;
  const float* rstd_T;
  const T *weight_D, *residual_TD;  // residual: null, none
  T* dx_TD;
  float* partials;  // [teams, D], written
  int64_t rows, width;
};

// Whether packs of 16 bytes can be used.
template <typename T>
bool UsesVectors(const RmsNormForwardArgs<T>& a) {
  return a.width % kVector<T> == 0 && AllAligned(a.x_TD, a.weight_D, a.y_TD);
}
template <typename T>
bool UsesVectors(const RmsNormBackwardArgs<T>& a) {
  return a.width % kVector<T> == 0 && AllAligned(a.dy_TD, a.x_TD, a.weight_D, a.residual_TD, a.dx_TD, a.partials);
}

template <typename T, int V>
STEMMA_DEVICE float SumOfSquares(const Pack<T, V>& x) {
  float sum = 0;
  STEMMA_UNROLL
  for (int j = 0; j < V; ++j) sum += At(x, j) * At(x, j);
  return sum;
}

STEMMA_DEVICE float RstdOf(float sum_of_squares, int64_t width, float eps) {
  return 1.0f / sqrtf(sum_of_squares / static_cast<float>(width) + eps);
}

template <typename T, int V, typename Team>
STEMMA_DEVICE void RmsNormForward(Team& team, const RmsNormForwardArgs<T>& a) {
  for (int64_t t = team.index(); t < a.rows; t += team.count()) {
    const T* x = a.x_TD + t * a.width;
    T* y = a.y_TD + t * a.width;
    Pack<T, V> kept[kHeldPacks] = {};
    float squares = 0;
    ForPacks<V>(
        team, a.width,
        [&](int c, int64_t i) {
          kept[c] = Load<V>(x + i);
          squares += SumOfSquares<T, V>(kept[c]);
        },
        [&](int64_t i) { squares += SumOfSquares<T, V>(Load<V>(x + i)); });
    const float rstd = RstdOf(team.Sum(squares), a.width, a.eps);
    if (team.rank() == 0) a.rstd_T[t] = rstd;
    const auto write = [&](const Pack<T, V>& pack, int64_t i) {
      const Pack<T, V> weight = Load<V>(a.weight_D + i);
      float out[V];
      STEMMA_UNROLL
      for (int j = 0; j < V; ++j) out[j] = At(pack, j) * rstd * At(weight, j);
      Store<T, V>(out, y + i);
    };
    ForPacks<V>(
        team, a.width, [&](int c, int64_t i) { write(kept[c], i); }, [&](int64_t i) { write(Load<V>(x + i), i); });
  }
}

// Returns Σ dy · weight · x of a pack.
template <typename T, int V>
STEMMA_DEVICE float NormDot(const Pack<T, V>& dy, const Pack<T, V>& weight, const Pack<T, V>& x) {
  float dot = 0;
  STEMMA_UNROLL
  for (int j = 0; j < V; ++j) dot += At(dy, j) * At(weight, j) * At(x, j);
  return dot;
}

// One row, its statistic and mean(dy w x) rstd².
struct NormedRow {
  int64_t row;
  float rstd, mean;
};

// Writes dx of a pack and adds its share of dweight.
template <typename T, int V>
STEMMA_DEVICE void NormGradient(const RmsNormBackwardArgs<T>& a, const NormedRow& normed, int64_t i,
                                const Pack<T, V>& dy, const Pack<T, V>& x, float (&dweight)[V]) {
  const float rstd = normed.rstd, mean = normed.mean;
  const int64_t first = normed.row * a.width + i;
  const Pack<T, V> weight = Load<V>(a.weight_D + i);
  float out[V];
  STEMMA_UNROLL
  for (int j = 0; j < V; ++j) {
    out[j] = rstd * (At(dy, j) * At(weight, j) - At(x, j) * mean);
    dweight[j] += At(dy, j) * (At(x, j) * rstd);
  }
  if (a.residual_TD != nullptr) {
    const Pack<T, V> residual = Load<V>(a.residual_TD + first);
    STEMMA_UNROLL
    for (int j = 0; j < V; ++j) out[j] += At(residual, j);
  }
  Store<T, V>(out, a.dx_TD + first);
}

// One row, whose sums of dweight go to `held` and, beyond the packs that a thread keeps, to `partial`.
template <typename T, int V, typename Team>
STEMMA_DEVICE void RmsNormBackwardRow(Team& team, const RmsNormBackwardArgs<T>& a, int64_t row,
                                      float (&held)[kHeldPacks][V], float* partial) {
  const T *x = a.x_TD + row * a.width, *dy = a.dy_TD + row * a.width;
  Pack<T, V> kept_x[kHeldPacks] = {}, kept_dy[kHeldPacks] = {};
  float dot = 0;
  ForPacks<V>(
      team, a.width,
      [&](int c, int64_t i) {
        kept_x[c] = Load<V>(x + i);
        kept_dy[c] = Load<V>(dy + i);
        dot += NormDot<T, V>(kept_dy[c], Load<V>(a.weight_D + i), kept_x[c]);
      },
      [&](int64_t i) { dot += NormDot<T, V>(Load<V>(dy + i), Load<V>(a.weight_D + i), Load<V>(x + i)); });
  const float rstd = a.rstd_T[row];
  const NormedRow normed = {row, rstd, team.Sum(dot) * rstd * rstd / static_cast<float>(a.width)};
  ForPacks<V>(
      team, a.width, [&](int c, int64_t i) { NormGradient<T, V>(a, normed, i, kept_dy[c], kept_x[c], held[c]); },
      [&](int64_t i) {
        const Pack<float, V> before = Load<V>(partial + i);
        float sums[V];
        STEMMA_UNROLL
        for (int j = 0; j < V; ++j) sums[j] = At(before, j);
        NormGradient<T, V>(a, normed, i, Load<V>(dy + i), Load<V>(x + i), sums);
        Store<float, V>(sums, partial + i);
      });
}

template <typename T, int V, typename Team>
STEMMA_DEVICE void RmsNormBackward(Team& team, const RmsNormBackwardArgs<T>& a) {
  float* partial = a.partials + team.index() * a.width;
  float held[kHeldPacks][V] = {};
  const float zeros[V] = {};
  ForPacks<V>(
      team, a.width, [](int, int64_t) {}, [&](int64_t i) { Store<float, V>(zeros, partial + i); });
  for (int64_t t = team.index(); t < a.rows; t += team.count()) RmsNormBackwardRow<T, V>(team, a, t, held, partial);
  ForPacks<V>(
      team, a.width, [&](int c, int64_t i) { Store<float, V>(held[c], partial + i); }, [](int64_t) {});
}

}  // namespace stemma::worker::cuda
