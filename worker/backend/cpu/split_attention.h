// Split attention: a segment's rows attend causally to themselves and to all K/V of their ancestor, each by its own
// kernel call, merged by log-sum-exp; in backward each part's kernel is called with the merged output and the merged
// log-sum-exp, which is exact (the paper, Section 3.1; Appendix A).
//
// The CPU backend's attention op over a kernel under it. Each ancestor is one kernel call per layer and wave.
#pragma once

#include <memory>
#include <utility>

#include "worker/backend/attention.h"
#include "worker/backend/cpu/attention_kernel.h"

namespace stemma::worker {

class SplitAttention final : public AttentionOp {
 public:
  explicit SplitAttention(std::unique_ptr<AttentionKernel> kernel) : kernel_(std::move(kernel)) {}

  AttentionSaved Forward(const AttentionBatch& batch, const at::Tensor& q_HTE, const at::Tensor& k_TKE,
                         const at::Tensor& v_TKE) const override;
  AttentionGradients Backward(const AttentionBatch& batch, const at::Tensor& do_TD,
                              const AttentionSaved& saved) const override;

 private:
  const std::unique_ptr<AttentionKernel> kernel_;
};

}  // namespace stemma::worker
