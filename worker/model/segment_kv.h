// How the K/V of a segment's rows meet what lies outside of its layer: other ranks that have rows of the same prefixes,
// and segments that were behind it. The attention block calls it; who runs the layer says what is behind it.
//
// Called by worker/model/attention_block.h on the engine thread.
#pragma once

#include <ATen/core/Tensor.h>

namespace stemma::worker {

// Gradients of K and V, of the accumulate dtype; undefined: there are none.
struct KvGradients {
  at::Tensor gk_TKE, gv_TKE;
};

class SegmentKv {
 public:
  virtual ~SegmentKv() = default;
  // Called in the forward when the layer has made K and V, before attention reads those of the ancestors.
  virtual void Made(const at::Tensor& /*k_TKE*/, const at::Tensor& /*v_TKE*/) const {}
  // Called in the backward when attention has added to the gradients of the ancestors. Returns what has been
  // accumulated on the segment's own K and V by all others.
  virtual KvGradients Gradients() const { return {}; }
};

// Returns that of a segment whose K and V nobody else reads. It has no state and lives for ever.
inline const SegmentKv& NobodyElse() {
  static const SegmentKv nobody;
  return nobody;
}

}  // namespace stemma::worker
