// The row kernels of the LM head: from a chunk of logits to log-prob and entropy of each row's target, then in place to
// the gradient of the logits. Called by cpu_kernels.cc. Raw pointers; rows are split over LibTorch's threads.
//
// u = z · inverse_temperature; p = softmax(u); y the target; H = -Σ p log p.
//   forward   log_prob = u_y - max(u) - log_sum, one read of the row: running maximum, Σ e^(u-max), Σ (u-max) e^(u-max)
//   backward  dz_v = inverse_temperature · (g (1[v=y] - p_v) - h p_v (log p_v + H)), one read and one write
// A target of -1 counts as u_y = 0 and is none of the v (worker/backend/kernels.h).
// Always holds: arithmetic on elements in T, sums of blocks in double; a row's result depends on that row only; a NaN
// or infinity in a row gives NaN in its results. A row with g = h = 0 gives zeros without reading it.
#pragma once

#include <cstdint>

namespace stemma::worker::kernels {

// What backward needs of a row beside its logits.
struct HeadRowSoftmax {
  double max = 0;      // of z
  double log_sum = 0;  // log Σ e^(u - max(u))
};

template <typename T>
struct HeadForwardArgs {
  const T* logits_TV;
  const int64_t* targets_T;
  HeadRowSoftmax* softmax_T;
  double* log_prob_T;
  double* entropy_T;  // null: not needed
  int64_t rows, vocab;
  double inverse_temperature;
};

template <typename T>
struct HeadBackwardArgs {
  T* logits_TV;  // becomes the gradient
  const int64_t* targets_T;
  const HeadRowSoftmax* softmax_T;
  const double* dlog_prob_T;  // g
  const double* entropy_T;    // H and h; null: no gradient of the entropy
  const double* dentropy_T;
  int64_t rows, vocab;
  double inverse_temperature;
};

// T: float, double.
template <typename T>
void HeadForward(const HeadForwardArgs<T>& args);
template <typename T>
void HeadBackward(const HeadBackwardArgs<T>& args);

}  // namespace stemma::worker::kernels
