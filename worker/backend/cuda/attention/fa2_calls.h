// Fa2Calls: LibTorch's own FlashAttention-2 kernels, dense and packed. The default of correctness.
//
// For bf16 and fp16 and head sizes up to 256 that are multiples of 8. The ops dispatch by the tensors' device, so that
// this links no CUDA; on another device they throw.
#pragma once

#include "worker/backend/cuda/attention/flash_calls.h"

namespace stemma::worker::cuda {

class Fa2Calls final : public FlashCalls {
 public:
  bool Takes(at::ScalarType dtype, int64_t head_size) const override;
  CallOutput Forward(const AttentionCall& call) const override;
  CallGradients Backward(const AttentionCall& call, const CallBackward& saved) const override;
};

}  // namespace stemma::worker::cuda
