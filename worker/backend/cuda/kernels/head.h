// The head's rows: statistics of a row of logits in one pass, and the gradient of the logits in their own memory. A
// team per row. Private to worker/backend/cuda.
//
//   u = z · inverse_temperature; p = softmax(u); y the target; H = -Σ p log p
//   forward   log_prob = u_y - max(u) - log_sum, by a running maximum of each thread
//   backward  dz_v = inverse_temperature · (g (1[v=y] - p_v) - h p_v (log p_v + H))
// A target of -1 counts as u_y = 0 and is none of the v. A NaN or infinity in a row gives NaN in its results; a row
// with g = h = 0 gives zeros without reading it. What lies between the end of a row and the next is neither read nor
// written: rows are read in packs, and what is behind the last whole one element by element.
//
// Bytes that a row of V logits must move: forward 4 V; backward 4 V in and, out, 4 V or 2 V (bf16); 0 in where g = h =
// 0.
#pragma once

#include "worker/backend/cuda/kernels/packs.h"

namespace stemma::worker::cuda {

// Logits of a thread at a time: two 16-byte reads, and one 16-byte write of bf16.
inline constexpr int kHeadVector = 8;

struct HeadForwardArgs {
  const float* logits_TV;
  const int64_t* targets_T;
  double* softmax_T2;
  double* log_prob_T;
  double* entropy_T;  // null: not needed
  int64_t rows, vocab;
  int64_t row_stride;  // elements from row to row
  double inverse_temperature;
};

// dlogits row t begins where the logits' row t does.
struct HeadBackwardArgs {
  float* logits_TV;
  const int64_t* targets_T;
  const double *softmax_T2, *dlog_prob_T;
  const double *entropy_T, *dentropy_T;  // null: no gradient of the entropy
  int64_t rows, vocab;
  int64_t row_stride;  // elements from row to row of logits
  double inverse_temperature;
};

template <typename Args>
bool HeadUsesVectors(const Args& a) {
  return a.vocab >= kHeadVector && a.row_stride % kHeadVector == 0 && AllAligned(a.logits_TV);
}

// Elements of a row that are in whole packs.
template <int V>
STEMMA_DEVICE int64_t InPacks(int64_t vocab) {
  return vocab / V * V;
}

// A thread's sums around its maximum: Σ e^x and Σ x e^x of x = (z - max) · inverse_temperature.
struct SoftmaxSums {
  float max;
  double sum, weighted;
};

STEMMA_DEVICE void Recentre(SoftmaxSums& sums, float max, double inverse_temperature) {
  if (sums.sum != 0) {
    const float shift = (sums.max - max) * static_cast<float>(inverse_temperature), factor = Exp(shift);
    sums.weighted = factor * (sums.weighted + shift * sums.sum);
    sums.sum *= factor;
  }
  sums.max = max;
}

template <int V>
STEMMA_DEVICE void AddToSoftmax(const Pack<float, V>& z, double inverse_temperature, SoftmaxSums& sums) {
  float max = sums.max;
  STEMMA_UNROLL
  for (int j = 0; j < V; ++j) max = At(z, j) > max ? At(z, j) : max;
  if (max > sums.max) Recentre(sums, max, inverse_temperature);
  float sum = 0, weighted = 0;
  STEMMA_UNROLL
  for (int j = 0; j < V; ++j) {
    const float x = (At(z, j) - sums.max) * static_cast<float>(inverse_temperature), e = Exp(x);
    sum += e;
    weighted += x * e;
  }
  sums.sum += sum;
  sums.weighted += weighted;
}

template <int V, typename Team>
STEMMA_DEVICE void HeadForward(Team& team, const HeadForwardArgs& a) {
  for (int64_t t = team.index(); t < a.rows; t += team.count()) {
    const float* z = a.logits_TV + t * a.row_stride;
    const int64_t in_packs = InPacks<V>(a.vocab);
    SoftmaxSums sums{-INFINITY, 0, 0};
    ForEachPack<V>(team, in_packs, [&](int64_t i) { AddToSoftmax<V>(Load<V>(z + i), a.inverse_temperature, sums); });
    const float* rest = z + in_packs;
    ForEachPack<1>(team, a.vocab - in_packs,
                   [&](int64_t i) { AddToSoftmax<1>(Load<1>(rest + i), a.inverse_temperature, sums); });
    const float max = team.Max(sums.max);
    Recentre(sums, max, a.inverse_temperature);
    const double sum = team.Sum(sums.sum), weighted = team.Sum(sums.weighted);
    if (team.rank() != 0) continue;
    const double log_sum = std::log(sum);
    const int64_t target = a.targets_T[t];
    const double target_z = target < 0 ? 0 : static_cast<double>(z[target]);
    a.softmax_T2[2 * t] = max;
    a.softmax_T2[2 * t + 1] = log_sum;
    a.log_prob_T[t] = (target_z - max) * a.inverse_temperature - log_sum;
    if (a.entropy_T != nullptr) a.entropy_T[t] = log_sum - weighted / sum;
  }
}

// What the gradient of a row is made of.
struct HeadRow {
  float max, log_sum, g, h, entropy, inverse_temperature;
  int64_t target;
};

STEMMA_DEVICE HeadRow HeadRowOf(const HeadBackwardArgs& a, int64_t t) {
  const bool has_entropy = a.dentropy_T != nullptr && a.dentropy_T[t] != 0;
  return {.max = static_cast<float>(a.softmax_T2[2 * t]),
          .log_sum = static_cast<float>(a.softmax_T2[2 * t + 1]),
          .g = static_cast<float>(a.dlog_prob_T[t] * a.inverse_temperature),
          .h = has_entropy ? static_cast<float>(a.dentropy_T[t] * a.inverse_temperature) : 0.0f,
          .entropy = has_entropy ? static_cast<float>(a.entropy_T[t]) : 0.0f,
          .inverse_temperature = static_cast<float>(a.inverse_temperature),
          .target = a.targets_T[t]};
}

template <int V>
STEMMA_DEVICE void HeadGradient(const HeadRow& row, const Pack<float, V>& z, int64_t i, float (&dz)[V]) {
  STEMMA_UNROLL
  for (int j = 0; j < V; ++j) {
    const float log_p = (At(z, j) - row.max) * row.inverse_temperature - row.log_sum, p = Exp(log_p);
    // Without a gradient of the entropy log p stays out: it is infinite where p is 0.
    dz[j] = row.h == 0 ? -p * row.g : -p * (row.g + row.h * (log_p + row.entropy));
    if (i + j == row.target) dz[j] += row.g;
  }
}

// Writes a row of Out in the memory of its logits, tile by tile of B = size() · V elements. All reads of tile k come
// before the barrier of round k, all writes of tile k after it. The writes reach the bytes below sizeof(Out) (k+1) B
// <= 4 (k+1) B, which are logits of tiles 0 … k: read before that barrier by every thread. Tile k+1, which a thread may
// read while others still write tile k, begins at byte 4 (k+1) B, above all of them. So no unread logit is overwritten.
//
// What is behind the W elements in packs comes behind the last barrier, when all of those are read. It is fewer than
// V <= W elements: bf16 is written below byte 2 (W + V) <= 4 W, where the logits that are yet unread begin, and fp32 in
// the place of the logit that its thread has read.
template <typename Out, int V, typename Team>
STEMMA_DEVICE void HeadBackwardRow(Team& team, const HeadBackwardArgs& a, int64_t t) {
  float* z = a.logits_TV + t * a.row_stride;
  Out* out = reinterpret_cast<Out*>(z);
  const int64_t in_packs = InPacks<V>(a.vocab);
  if (a.dlog_prob_T[t] == 0 && (a.dentropy_T == nullptr || a.dentropy_T[t] == 0)) {
    const float zeros[V] = {}, zero[1] = {};
    ForEachPack<V>(team, in_packs, [&](int64_t i) { Store<Out, V>(zeros, out + i); });
    ForEachPack<1>(team, a.vocab - in_packs, [&](int64_t i) { Store<Out, 1>(zero, out + in_packs + i); });
    return;
  }
  const HeadRow row = HeadRowOf(a, t);
  const int64_t tile = static_cast<int64_t>(team.size()) * V;
  for (int64_t first = 0; first < in_packs; first += tile) {
    const int64_t i = first + static_cast<int64_t>(team.rank()) * V;
    float dz[V] = {};
    if (i < in_packs) HeadGradient<V>(row, Load<V>(z + i), i, dz);
    team.Sync();
    if (i < in_packs) Store<Out, V>(dz, out + i);
  }
  ForEachPack<1>(team, a.vocab - in_packs, [&](int64_t i) {
    float dz[1] = {};
    HeadGradient<1>(row, Load<1>(z + in_packs + i), in_packs + i, dz);
    Store<Out, 1>(dz, out + in_packs + i);
  });
}

template <typename Out, int V, typename Team>
STEMMA_DEVICE void HeadBackward(Team& team, const HeadBackwardArgs& a) {
  for (int64_t t = team.index(); t < a.rows; t += team.count()) HeadBackwardRow<Out, V>(team, a, t);
}

}  // namespace stemma::worker::cuda
