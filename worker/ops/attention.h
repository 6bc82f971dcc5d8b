// Split attention: a segment's rows attend causally to themselves and to all K/V of their ancestor, each by its own
// kernel call, merged by log-sum-exp; in backward each part's kernel is called with the merged output and the
// merged log-sum-exp, which is exact (the paper, Section 3.1; Appendix A).
//
// Called by worker/model only. Shapes: T rows, C ancestor rows, H query heads, K kv heads, g = H/K, E head size. Query
// head h belongs to kv head h/g. No call ever sees zero keys: a segment without an ancestor makes no ancestor call.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "worker/ops/attention_kernel.h"

namespace stemma::worker {

// K/V that rows may see before their own, and where their gradients are added (fp32; fp64 in fp64).
struct AncestorKv {
  at::Tensor k_KCE, v_KCE;    // C > 0
  at::Tensor gk_KCE, gv_KCE;  // undefined in a forward-only pass
};

// A segment's rows in the packed batch. Spans are adjacent, in order, and cover all T rows; spans of one ancestor are
// neighbours, so that each ancestor is one call per layer and wave.
struct AttentionSpan {
  int64_t begin = 0, end = 0;
  int64_t ancestor = -1;  // index into AttentionBatch::ancestors; -1: none
};

// Causal calls: one per span; one per ancestor, on its spans' rows padded to the longest.
enum class CausalLayout { kLoop, kPadded };

struct AttentionBatch {
  std::vector<AttentionSpan> spans;
  std::vector<AncestorKv> ancestors;
  CausalLayout layout = CausalLayout::kLoop;
  double scale = 1;
};

// What Backward reads; its bytes are planned (common/cost/cost.h).
struct AttentionSaved {
  at::Tensor q_HTE, k_KTE, v_KTE;  // rotated; any strides, last dim contiguous
  at::Tensor o_TD;                 // merged output, [T, H·E], the next linear's input
  at::Tensor lse_HT;               // merged
};

struct AttentionGradients {
  at::Tensor dq_HTE, dk_KTE, dv_KTE;  // run dtype
};

AttentionSaved AttentionForward(const AttentionKernel& kernel, const AttentionBatch& batch, const at::Tensor& q_HTE,
                                const at::Tensor& k_KTE, const at::Tensor& v_KTE);

// Adds to gk, gv of the batch's ancestors.
AttentionGradients AttentionBackward(const AttentionKernel& kernel, const AttentionBatch& batch,
                                     const at::Tensor& do_TD, const AttentionSaved& saved);

}  // namespace stemma::worker
