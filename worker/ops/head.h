// The head: hidden rows -> log-prob and entropy of each row's target, and the loss's gradient, chunk by chunk of rows,
// so that whole logits never exist. All of temperature-scaled logits u = z / temperature, u = softmax's input.
//
//   d lp / dz_v = (1[v = target] - p_v) / temperature        dH / dz_v = -p_v (log p_v + H) / temperature
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace stemma::worker {

struct HeadOptions {
  double temperature = 1;
  int64_t chunk_rows = 512;
  bool need_entropy = false;
};

struct HeadOutput {
  std::vector<double> log_prob;  // [T]
  std::vector<double> entropy;   // [T] when needed, else empty
};

HeadOutput HeadForward(const at::Tensor& hidden_TD, const at::Tensor& weight_VD, std::span<const int64_t> targets,
                       const HeadOptions& options);

// Rows [begin, end) of one rollout.
struct RowRange {
  int64_t begin = 0, end = 0;
};

// Given log-probs and entropies (empty unless needed) of rows [range.begin, range.end), writes dL/dlog_prob and
// dL/dentropy of those rows (the second only when entropy is needed). The spans start at range.begin.
using RowGradient =
    std::function<void(RowRange range, std::span<const double> log_prob, std::span<const double> entropy,
                       std::span<double> dlog_prob, std::span<double> dentropy)>;

struct HeadBackwardResult {
  HeadOutput output;
  at::Tensor dhidden_TD;  // run dtype
};

// Forward and backward in one pass per chunk; adds to dweight_VD (fp32; fp64 in fp64). `gradient` is called once for
// each chunk's rows; with whole_rollouts it is called once for each rollout instead, chunks are aligned to rollouts,
// and a rollout longer than a chunk costs a second head forward.
HeadBackwardResult HeadForwardBackward(const at::Tensor& hidden_TD, const at::Tensor& weight_VD,
                                       std::span<const int64_t> targets, const HeadOptions& options,
                                       std::span<const RowRange> rollouts, bool whole_rollouts,
                                       const RowGradient& gradient, const at::Tensor& dweight_VD);

}  // namespace stemma::worker
