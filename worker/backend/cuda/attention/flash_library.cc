#include "worker/backend/cuda/attention/flash_library.h"

#include <glog/logging.h>

#include <algorithm>

namespace stemma::worker::cuda {

void RngStates::Keep(at::Device device, const RngState& rng) {
  for (auto& [kept_device, kept] : states_) {
    if (kept_device == device) {
      kept = rng;
      return;
    }
  }
  states_.emplace_back(device, rng);
}

const RngState& RngStates::Get(at::Device device) const {
  const auto found = std::find_if(states_.begin(), states_.end(), [&](const auto& x) { return x.first == device; });
  CHECK(found != states_.end()) << "a backward before any forward on " << device;
  return found->second;
}

CallOutput FlashLibrary::Forward(const AttentionCall& call) const {
  CallOutput output = calls->Forward(call);
  rng.Keep(call.q.device(), output.rng);
  return output;
}

CallGradients FlashLibrary::Backward(const AttentionCall& call, const at::Tensor& dout, const at::Tensor& out,
                                     const at::Tensor& lse) const {
  return calls->Backward(call, {dout, out, lse, rng.Get(call.q.device())});
}

}  // namespace stemma::worker::cuda
