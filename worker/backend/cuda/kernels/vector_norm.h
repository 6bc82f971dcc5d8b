// The 2-norm of an array, summed in fp64. Private to worker/backend/cuda.
//
// Reads the array once: S bytes for each element of S bytes. Each team writes the squares of its elements to
// partials[index()]; one team then adds these up. The order of the sum depends on the number of teams and on nothing
// else; no atomics.
#pragma once

#include <cmath>

#include "worker/backend/cuda/kernels/packs.h"

namespace stemma::worker::cuda {

template <typename T>
struct VectorNormArgs {
  const T* values;
  int64_t count;
  double* partials;  // [teams], written
};

template <typename T>
bool UsesVectors(const VectorNormArgs<T>& a) {
  return a.count % kVector<T> == 0 && AllAligned(a.values);
}

template <typename T, int V, typename Team>
STEMMA_DEVICE void SumSquares(Team& team, const VectorNormArgs<T>& a) {
  const int64_t tile = static_cast<int64_t>(team.size()) * V;
  double sum = 0;
  for (int64_t first = team.index() * tile; first < a.count; first += team.count() * tile) {
    const int64_t i = first + static_cast<int64_t>(team.rank()) * V;
    if (i >= a.count) continue;
    const Pack<T, V> pack = Load<V>(a.values + i);
    STEMMA_UNROLL
    for (int j = 0; j < V; ++j) {
      const double x = At(pack, j);
      sum += x * x;
    }
  }
  sum = team.Sum(sum);
  if (team.rank() == 0) a.partials[team.index()] = sum;
}

// One team.
template <typename Team>
STEMMA_DEVICE void NormOfPartials(Team& team, const double* partials, int64_t num_partials, double* norm) {
  double sum = 0;
  for (int64_t n = team.rank(); n < num_partials; n += team.size()) sum += partials[n];
  sum = team.Sum(sum);
  if (team.rank() == 0) *norm = sqrt(sum);
}

}  // namespace stemma::worker::cuda
