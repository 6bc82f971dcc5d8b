// Attention kernels that are wrong on purpose: the negative controls of split attention. Each is exact in the forward
// pass and in one-part attention, and wrong in the gradient of a merge (by 12 to 30 % on random inputs).
#pragma once

#include <ATen/ATen.h>

#include "tests/testing/namespaces.h"
#include "worker/backend/cpu/attention_kernel.h"

namespace stemma::testing {

enum class WrongBackward {
  kOwnOutputAndLse,  // each part with its own output and LSE and its weighted dO: the LSE's gradient is dropped
  kOwnOutput,        // merged LSE, the part's own output
  kOwnLse,           // merged output, the part's own LSE
  kNoAncestor,       // the unmasked part's gradients are zero
};

class WrongAttention : public CpuAttention {
 public:
  explicit WrongAttention(WrongBackward wrong) : wrong_(wrong) {}

  at::Tensor Backward(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                      const at::Tensor& out, const at::Tensor& lse, bool causal, double scale,
                      const KeyGradients& sums) const override {
    const Output own = Forward(q, k, v, causal, scale);
    switch (wrong_) {
      case WrongBackward::kOwnOutputAndLse: {
        const at::Tensor weighted = (own.lse - lse).exp().unsqueeze(4) * dout;
        return CpuAttention::Backward(weighted, q, k, v, own.out, own.lse, causal, scale, sums);
      }
      case WrongBackward::kOwnOutput:
        return CpuAttention::Backward(dout, q, k, v, own.out, lse, causal, scale, sums);
      case WrongBackward::kOwnLse:
        return CpuAttention::Backward(dout, q, k, v, out, own.lse, causal, scale, sums);
      case WrongBackward::kNoAncestor:
        break;
    }
    if (causal) return CpuAttention::Backward(dout, q, k, v, out, lse, causal, scale, sums);
    return at::zeros_like(q);
  }

 private:
  WrongBackward wrong_;
};

}  // namespace stemma::testing
