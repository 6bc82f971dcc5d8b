// Attention as one op: a batch of spans and their ancestors in; the merged output, and what backward reads of it, out.
//
// A backend brings its own (worker/backend/backend.h); what is saved beside q, k, v and the output is its business.
// Called by worker/model. Shapes: T rows, C ancestor rows, H query heads, K kv heads, g = H/K, E head size. Query head
// h belongs to kv head h/g. The softmax of a row is over its ancestor's keys and its own span's keys up to itself (the
// paper, Section 3.1). A span without an ancestor attends to itself only: no kernel ever sees zero keys.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace stemma::worker {

// K/V that rows may see before their own, and where their gradients are added (fp32; fp64 in fp64).
struct AncestorKv {
  at::Tensor k_CKE, v_CKE;    // C > 0
  at::Tensor gk_CKE, gv_CKE;  // undefined in a forward-only pass

  // Rows [begin, end), as views.
  AncestorKv Rows(int64_t begin, int64_t end) const {
    const auto rows = [&](const at::Tensor& x) { return x.defined() ? x.slice(0, begin, end) : x; };
    return {rows(k_CKE), rows(v_CKE), rows(gk_CKE), rows(gv_CKE)};
  }
};

// A segment's rows in the packed batch. Spans are adjacent, in order, and cover all T rows; spans of one ancestor are
// neighbours, so that each ancestor can be one call per layer and wave.
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

// What Backward reads; its bytes are planned (common/cost/tensor_bytes.h).
struct AttentionSaved {
  at::Tensor q_HTE, k_TKE, v_TKE;  // rotated; any strides, last dim contiguous
  at::Tensor o_TD;                 // merged output, [T, H·E], the next linear's input
  at::Tensor lse_HT;               // merged
};

struct AttentionGradients {
  at::Tensor dq_HTE, dk_TKE, dv_TKE;  // run dtype
};

class AttentionOp {
 public:
  virtual ~AttentionOp() = default;
  // q [H, T, E], k and v [T, K, E], rotated, run dtype.
  virtual AttentionSaved Forward(const AttentionBatch& batch, const at::Tensor& q_HTE, const at::Tensor& k_TKE,
                                 const at::Tensor& v_TKE) const = 0;
  // Adds to gk, gv of the batch's ancestors.
  virtual AttentionGradients Backward(const AttentionBatch& batch, const at::Tensor& do_TD,
                                      const AttentionSaved& saved) const = 0;
};

}  // namespace stemma::worker
