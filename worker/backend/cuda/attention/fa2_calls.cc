#include "worker/backend/cuda/attention/fa2_calls.h"

#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <glog/logging.h>

#include <optional>

namespace stemma::worker::cuda {
namespace {

constexpr double kNoDropout = 0;

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
  return {out, lse, {rng_state, unused}};
}

CallGradients Fa2Calls::Backward(const AttentionCall& call, const CallBackward& saved) const {
  CheckCall(call);
  CHECK(saved.lse.is_contiguous());
  CHECK(saved.out.sizes() == call.q.sizes() && saved.dout.sizes() == call.q.sizes());
  CHECK(saved.rng.state.defined() && saved.rng.unused.defined());
  auto [dq, dk, dv] = at::_flash_attention_backward(saved.dout, call.q, call.k, call.v, saved.out, saved.lse,
                                                    call.offsets_q, call.offsets_k, call.max_q, call.max_k, kNoDropout,
                                                    call.causal, saved.rng.state, saved.rng.unused, call.scale);
  return {dq, dk, dv};
}

}  // namespace stemma::worker::cuda
