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
  struct Output {
    at::Tensor out;  // [B, K, g, Sq, E]
    at::Tensor lse;  // [B, K, g, Sq], natural log, scale included
  };
  struct KeyGradients {
    at::Tensor dk, dv;  // [B, K, Sk, E], summed over the group; strides as k's may be
  };
  virtual ~AttentionKernel() = default;
  // q [B, K, g, Sq, E]; k, v [B, K, Sk, E] with any strides but a contiguous last dim; Sk > 0. causal needs Sq == Sk.
  virtual Output Forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, bool causal,
                         double scale) const = 0;
  // Returns dq [B, K, g, Sq, E]; adds to `sums`, so that a prefix's gradients need no memory of a wave's own.
  virtual at::Tensor Backward(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                              const at::Tensor& out, const at::Tensor& lse, bool causal, double scale,
                              const KeyGradients& sums) const = 0;
};

// The product's, over worker/backend/cpu/attention.h.
class CpuAttention : public AttentionKernel {
 public:
  Output Forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, bool causal,
                 double scale) const override;
  at::Tensor Backward(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                      const at::Tensor& out, const at::Tensor& lse, bool causal, double scale,
                      const KeyGradients& sums) const override;
};

}  // namespace stemma::worker
