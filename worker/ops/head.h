// The head: hidden rows -> log-prob and entropy of each row's target, and the loss's gradient, chunk by chunk of rows,
// so that whole logits never exist. All of temperature-scaled logits u = z / temperature, u = softmax's input.
//
//   d lp / dz_v = (1[v = target] - p_v) / temperature        dH / dz_v = -p_v (log p_v + H) / temperature
//
// Where tensor-parallel ranks have some tokens of the vocabulary each, a rank computes its own columns of the logits.
// Of each row it then has their maximum and log-sum-exp, the target's logit if the target is its own, and their
// entropy; the ranks exchange these numbers, so that every rank has the same log-probs and the same loss, and no logits
// travel.
//
// Everything stays on the backend's device: nothing here waits for it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <span>

#include "worker/backend/backend.h"
#include "worker/ops/vocabulary.h"

namespace stemma::worker {

struct HeadOptions {
  double temperature = 1;
  int64_t chunk_rows = 512;
  bool need_entropy = false;
  VocabularyShard vocabulary = {};
  // Chunks are aligned to the input's rollouts: those that fit one together share it, a longer one has chunks of its
  // own. Gradients are then asked for whole rollouts, and one that is longer than a chunk costs a second head forward.
  bool whole_rollouts = false;
};

// Rows [begin, end) of what the head is given.
struct RowRange {
  int64_t begin = 0, end = 0;
  int64_t rows() const { return end - begin; }
};

struct HeadOutput {
  at::Tensor log_prob_T;  // fp64
  at::Tensor entropy_T;   // fp64 when needed, else undefined
};

struct HeadInput {
  const at::Tensor& hidden_TD;  // this rank's rows (worker/ops/tensor_parallel.h) of the T that the targets say
  const at::Tensor& weight_VD;  // this rank's tokens'
  const at::Tensor& targets_T;  // int64, of the whole vocabulary
  std::span<const RowRange> rollouts = {};  // given where chunks are aligned to them: adjacent, in order, all rows
};

// Returns log-probs, and entropies where they are asked for, without keeping anything for a backward: the bits of
// HeadForwardBackward.
HeadOutput HeadForward(const Backend& backend, const HeadInput& input, const HeadOptions& options);

// Given log-probs and entropies (undefined unless needed) of rows [range.begin, range.end), writes dL/dlog_prob and
// dL/dentropy of those rows (the second only when entropy is needed). The tensors start at range.begin.
using RowGradient = std::function<void(RowRange range, const at::Tensor& log_prob_T, const at::Tensor& entropy_T,
                                       const at::Tensor& dlog_prob_T, const at::Tensor& dentropy_T)>;

struct HeadBackwardResult {
  HeadOutput output;
  at::Tensor dhidden_TD;  // this rank's rows; run dtype
};

// Runs forward and backward in one pass per chunk, whose gradients it asks for; adds to dweight_VD (fp32; fp64 in
// fp64).
HeadBackwardResult HeadForwardBackward(const Backend& backend, const HeadInput& input, const HeadOptions& options,
                                       const RowGradient& gradient, const at::Tensor& dweight_VD);

}  // namespace stemma::worker
