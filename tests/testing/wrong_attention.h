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

  at::Tensor Backward(const Call& call, const Output& output, const at::Tensor& dout,
                      const KeyGradients& sums) const override {
    const Output own = Forward(call);
    switch (wrong_) {
      case WrongBackward::kOwnOutputAndLse: {
        const at::Tensor weighted = (own.lse - output.lse).exp().unsqueeze(4) * dout;
        return CpuAttention::Backward(call, own, weighted, sums);
      }
      case WrongBackward::kOwnOutput:
        return CpuAttention::Backward(call, {own.out, output.lse}, dout, sums);
      case WrongBackward::kOwnLse:
        return CpuAttention::Backward(call, {output.out, own.lse}, dout, sums);
      case WrongBackward::kNoAncestor:
        break;
    }
    if (call.causal) return CpuAttention::Backward(call, output, dout, sums);
    return at::zeros_like(call.q);
  }

 private:
  WrongBackward wrong_;
};

}  // namespace stemma::testing
