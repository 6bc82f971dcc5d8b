// CudnnCalls: cuDNN's attention, dense calls only.
//
// Faster than FA2 on Hopper, but with a plan for every exact shape, which takes 0.05 to 0.4 s to make and is kept by
// the thread that made it: reach it through BucketedCalls (bucketed_calls.h) and for shapes that the self-check
// admitted (buckets.h). Its packed form made a plan at every call in this version of LibTorch, and is not used.
// For bf16 and fp16 and head sizes up to 128 that are multiples of 8. Links no CUDA.
#pragma once

#include "worker/backend/cuda/attention/flash_calls.h"

namespace stemma::worker::cuda {

class CudnnCalls final : public FlashCalls {
 public:
  bool Takes(at::ScalarType dtype, int64_t head_size) const override;
  CallOutput Forward(const AttentionCall& call) const override;
  CallGradients Backward(const AttentionCall& call, const CallBackward& saved) const override;
};

// Makes [B, H, S], contiguous, of an LSE as cuDNN's op gives it: [B, H, S, 1] or [B, H, S], any strides.
at::Tensor LseOfRows(const at::Tensor& lse);

}  // namespace stemma::worker::cuda
