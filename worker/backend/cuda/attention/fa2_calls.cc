#include "worker/backend/cuda/attention/fa2_calls.h"

#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <glog/logging.h>

#include <optional>
#include <vector>

namespace stemma::worker::cuda {
namespace {

void CheckCall(const AttentionCall& call) {
  CHECK_EQ(call.q.dim(), call.packed() ? 3 : 4);
  CHECK_GT(call.q.numel(), 0);
  CHECK_GT(call.k.numel(), 0) << "zero keys";
  CHECK(call.q.stride(-1) == 1 && call.k.stride(-1) == 1 && call.v.stride(-1) == 1);
  if (!call.packed()) return;
  for (const at::Tensor* offsets : {&call.offsets_q, &call.offsets_k}) {
    CHECK(offsets->scalar_type() == at::kInt && offsets->is_contiguous() && offsets->device() == call.q.device());
  }
  // Where the longest sequence is one row, the kernel takes the rows for the batch: none may be empty.
  CHECK(call.max_q > 1 || call.offsets_q.numel() - 1 == call.q.size(0));
}

// What another release of the library may do otherwise throws, so that the self-check refuses the strategy by name.
void CheckOutput(const AttentionCall& call, const CallOutput& output) {
  const at::Tensor& q = call.q;
  const std::vector<int64_t> expected = call.packed() ? std::vector<int64_t>{q.size(1), q.size(0)}
                                                      : std::vector<int64_t>{q.size(0), q.size(2), q.size(1)};
  TORCH_CHECK(output.lse.sizes() == expected, "FA2's log-sum-exp is ", output.lse.sizes(), ", not ", expected);
  TORCH_CHECK(output.rng.state.defined() && output.rng.unused.defined(), "FA2 gives no random state");
}

std::optional<at::Tensor> Optional(const at::Tensor& x) { return x.defined() ? std::optional(x) : std::nullopt; }

}  // namespace

bool Fa2Calls::Takes(at::ScalarType dtype, int64_t head_size) const {
  return (dtype == at::kBFloat16 || dtype == at::kHalf) && head_size % 8 == 0 && head_size <= 256;
}

CallOutput Fa2Calls::Forward(const AttentionCall& call) const {
  CheckCall(call);
  auto [out, lse, rng_state, unused, debug_mask] = at::_flash_attention_forward(
      call.q, call.k, call.v, Optional(call.offsets_q), Optional(call.offsets_k), call.max_q, call.max_k, kNoDropout,
      call.causal, /*return_debug_mask=*/false, call.scale);
  const CallOutput output{out, lse, {rng_state, unused}};
  CheckOutput(call, output);
  return output;
}

CallGradients Fa2Calls::Backward(const AttentionCall& call, const CallBackward& saved) const {
  CheckCall(call);
  CHECK(saved.lse.is_contiguous());
  CHECK(saved.out.sizes() == call.q.sizes() && saved.dout.sizes() == call.q.sizes());
  auto [dq, dk, dv] = at::_flash_attention_backward(saved.dout, call.q, call.k, call.v, saved.out, saved.lse,
                                                    call.offsets_q, call.offsets_k, call.max_q, call.max_k, kNoDropout,
                                                    call.causal, saved.rng.state, saved.rng.unused, call.scale);
  return {dq, dk, dv};
}

}  // namespace stemma::worker::cuda
