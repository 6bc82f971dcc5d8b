// SwiGLU, forward and backward, element by element. Private to worker/backend/cuda.
//
//   forward   y = silu(g) · u of a row [g; u]
//   backward  du = dy silu(g),  dg = dy u σ(g) (1 + g (1 - σ(g)))
//
// Bytes that a row of F elements of S bytes must move: forward 3 F S (g, u in; y out), backward 5 F S (dy, g, u in; dg,
// du out).
#pragma once

#include "worker/backend/cuda/kernels/packs.h"

namespace stemma::worker::cuda {

template <typename T>
struct SwigluForwardArgs {
  const T* gate_up_TJ;
  T* y_TF;
  int64_t rows, width;  // width: F
};

template <typename T>
struct SwigluBackwardArgs {
  const T *dy_TF, *gate_up_TJ;
  T* dgate_up_TJ;
  int64_t rows, width;
};

template <typename T>
bool UsesVectors(const SwigluForwardArgs<T>& a) {
  return a.width % kVector<T> == 0 && AllAligned(a.gate_up_TJ, a.y_TF);
}
template <typename T>
bool UsesVectors(const SwigluBackwardArgs<T>& a) {
  return a.width % kVector<T> == 0 && AllAligned(a.dy_TF, a.gate_up_TJ, a.dgate_up_TJ);
}

template <typename T, int V, typename Team>
STEMMA_DEVICE void SwigluForward(Team& team, const SwigluForwardArgs<T>& a) {
  ForPacksOfRows<V>(team, a.rows, a.width, [&](int64_t t, int64_t i) {
    const T* row = a.gate_up_TJ + 2 * t * a.width;
    const Pack<T, V> gate = Load<V>(row + i), up = Load<V>(row + a.width + i);
    float out[V];
    STEMMA_UNROLL
    for (int j = 0; j < V; ++j) {
      const float g = At(gate, j);
      out[j] = g * Sigmoid(g) * At(up, j);
    }
    Store<T, V>(out, a.y_TF + t * a.width + i);
  });
}

template <typename T, int V, typename Team>
STEMMA_DEVICE void SwigluBackward(Team& team, const SwigluBackwardArgs<T>& a) {
  ForPacksOfRows<V>(team, a.rows, a.width, [&](int64_t t, int64_t i) {
    const T* row = a.gate_up_TJ + 2 * t * a.width;
    T* out = a.dgate_up_TJ + 2 * t * a.width;
    const Pack<T, V> gate = Load<V>(row + i), up = Load<V>(row + a.width + i), dy = Load<V>(a.dy_TF + t * a.width + i);
    float dgate[V], dup[V];
    STEMMA_UNROLL
    for (int j = 0; j < V; ++j) {
      const float g = At(gate, j), d = At(dy, j), s = Sigmoid(g);
      dup[j] = d * (g * s);
      dgate[j] = d * At(up, j) * (s * (1.0f + g * (1.0f - s)));
    }
    Store<T, V>(dgate, out + i);
    Store<T, V>(dup, out + a.width + i);
  });
}

}  // namespace stemma::worker::cuda
