// FlashLibrary: a library's calls with what its backwards read of its forwards. Owned by FlashAttention.
#pragma once

#include <utility>
#include <vector>

#include "worker/backend/cuda/attention/flash_calls.h"

namespace stemma::worker::cuda {

// Random state of a library's forward calls, one for each device. AttentionSaved has no room for it, and without
// dropout no kernel reads it: any forward's will do for any backward.
class RngStates {
 public:
  void Keep(at::Device device, const RngState& rng);
  const RngState& Get(at::Device device) const;  // dies before any Keep

 private:
  std::vector<std::pair<at::Device, RngState>> states_;
};

struct FlashLibrary {
  const FlashCalls* calls;  // null: there is none
  mutable RngStates rng;

  CallOutput Forward(const AttentionCall& call) const;
  CallGradients Backward(const AttentionCall& call, const at::Tensor& dout, const at::Tensor& out,
                         const at::Tensor& lse) const;
};

}  // namespace stemma::worker::cuda
