// The kernel behind one attention call, as a strategy: chosen once at start, it knows nothing of splits and merges.
// Called by split_attention.h; tests inject wrong ones.
//
// Dense batched heads: B batch entries, K kv heads of g query heads each, E head size; query head (k, i), i < g,
// belongs to kv head k. Computed in fp32, in fp64 for fp64; k and v are in that dtype or in bf16, all else in that.
#pragma once

#include <ATen/core/Tensor.h>

namespace stemma::worker {

class AttentionKernel {
 public:
  struct Call {
    at::Tensor q;     // [B, K, g, Sq, E]
    at::Tensor k, v;  // [B, K, Sk, E] with any strides but a contiguous last dim; Sk > 0
    bool causal;      // needs Sq == Sk
    double scale;
  };
  struct Output {
    at::Tensor out;  // [B, K, g, Sq, E]
    at::Tensor lse;  // [B, K, g, Sq], natural log, scale included
  };
  struct KeyGradients {
    at::Tensor dk, dv;  // [B, K, Sk, E], summed over the group; strides as k's may be
  };
  virtual ~AttentionKernel() = default;
  virtual Output Forward(const Call& call) const = 0;
  // Returns dq [B, K, g, Sq, E] for dout of the same shape; adds to `sums`, so that a prefix's gradients need no memory
  // of a wave's own. `output` is the merged one where the rows attend to other keys too.
  virtual at::Tensor Backward(const Call& call, const Output& output, const at::Tensor& dout,
                              const KeyGradients& sums) const = 0;
};

// The product's, over worker/backend/cpu/attention.h.
class CpuAttention : public AttentionKernel {
 public:
  Output Forward(const Call& call) const override;
  at::Tensor Backward(const Call& call, const Output& output, const at::Tensor& dout,
                      const KeyGradients& sums) const override;
};

}  // namespace stemma::worker
