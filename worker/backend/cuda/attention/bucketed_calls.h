// BucketedCalls: dense calls of another library with rows padded to a bucket (buckets.h), so that it sees few shapes.
//
// Padding stands at the end and is zeros. Without a mask only queries are padded: no padded key may be seen. In a
// causal call queries and keys are: a padded key is seen by padded rows only. Padded rows have dout = 0, out = 0 and
// lse = 0, so that every term of theirs in a gradient is 0; they are cut off again.
#pragma once

#include "worker/backend/cuda/attention/flash_calls.h"

namespace stemma::worker::cuda {

class BucketedCalls final : public FlashCalls {
 public:
  // `calls` outlives this.
  explicit BucketedCalls(const FlashCalls& calls) : calls_(calls) {}

  bool Takes(at::ScalarType dtype, int64_t head_size) const override { return calls_.Takes(dtype, head_size); }
  CallOutput Forward(const AttentionCall& call) const override;
  CallGradients Backward(const AttentionCall& call, const CallBackward& saved) const override;

 private:
  const FlashCalls& calls_;
};

}  // namespace stemma::worker::cuda
