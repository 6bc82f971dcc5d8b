// The first element that is not finite. Private to worker/backend/cuda.
//
// Reads the array once. Each team writes to partials[index()] how many elements follow its first bad one, itself
// included (0: none is bad); one team then takes the largest. The smallest index, whatever the number of teams; no
// atomics.
#pragma once

#include "worker/backend/cuda/kernels/packs.h"

namespace stemma::worker::cuda {

template <typename T>
struct FirstNonfiniteArgs {
  const T* values;
  int64_t count;
  int64_t* partials;  // [teams], written
};

template <typename T>
bool UsesVectors(const FirstNonfiniteArgs<T>& a) {
  return a.count % kVector<T> == 0 && AllAligned(a.values);
}

// Both formats have all bits of the exponent set in infinities and NaNs alone, and bf16 has the exponent of fp32.
STEMMA_DEVICE bool IsNonfinite(float x) { return (BitsOfFloat(x) & 0x7f800000u) == 0x7f800000u; }

template <typename T, int V, typename Team>
STEMMA_DEVICE void FindNonfinite(Team& team, const FirstNonfiniteArgs<T>& a) {
  const int64_t tile = static_cast<int64_t>(team.size()) * V;
  int64_t most = 0;
  for (int64_t first = team.index() * tile; first < a.count; first += team.count() * tile) {
    const int64_t i = first + static_cast<int64_t>(team.rank()) * V;
    if (i >= a.count) continue;
    const Pack<T, V> pack = Load<V>(a.values + i);
    STEMMA_UNROLL
    for (int j = 0; j < V; ++j) {
      if (IsNonfinite(At(pack, j)) && a.count - (i + j) > most) most = a.count - (i + j);
    }
  }
  most = team.Max(most);
  if (team.rank() == 0) a.partials[team.index()] = most;
}

// Writes the smallest index to *first, -1 if all are finite. One team.
template <typename Team>
STEMMA_DEVICE void FirstOfPartials(Team& team, const int64_t* partials, int64_t num_partials, int64_t count,
                                   int64_t* first) {
  int64_t most = 0;
  for (int64_t n = team.rank(); n < num_partials; n += team.size()) most = partials[n] > most ? partials[n] : most;
  most = team.Max(most);
  if (team.rank() == 0) *first = most == 0 ? -1 : count - most;
}

}  // namespace stemma::worker::cuda
