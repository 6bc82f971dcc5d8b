#include "worker/backend/cuda/attention/cudnn_calls.h"

#include <ATen/ops/_scaled_dot_product_cudnn_attention.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention_backward.h>
#include <glog/logging.h>

#include <optional>

namespace stemma::worker::cuda {
namespace {

void CheckDenseCall(const AttentionCall& call) {
  CHECK(!call.packed() && call.q.dim() == 4) << "dense calls only";
  CHECK_GT(call.q.numel(), 0);
  CHECK_GT(call.k.numel(), 0) << "zero keys";
  // A rectangle's causal mask would begin in the other corner than FA2's.
  CHECK(!call.causal || call.q.size(1) == call.k.size(1));
}

// [B, S, H, E] <-> [B, H, S, E], as a view.
at::Tensor SwapHeads(const at::Tensor& x) { return x.transpose(1, 2); }

}  // namespace

at::Tensor LseOfRows(const at::Tensor& lse) {
  TORCH_CHECK(lse.dim() == 3 || (lse.dim() == 4 && lse.size(3) == 1), "cuDNN's log-sum-exp is ", lse.sizes());
  return (lse.dim() == 4 ? lse.squeeze(3) : lse).contiguous();
}

bool CudnnCalls::Takes(at::ScalarType dtype, int64_t head_size) const {
  return (dtype == at::kBFloat16 || dtype == at::kHalf) && head_size % 8 == 0 && head_size <= 128;
}

CallOutput CudnnCalls::Forward(const AttentionCall& call) const {
  CheckDenseCall(call);
  const auto result = at::_scaled_dot_product_cudnn_attention(
      SwapHeads(call.q), SwapHeads(call.k), SwapHeads(call.v), /*attn_bias=*/std::nullopt,
      /*compute_log_sumexp=*/true, kNoDropout, call.causal, /*return_debug_mask=*/false, call.scale);
  return {SwapHeads(std::get<0>(result)), LseOfRows(std::get<1>(result)), {std::get<6>(result), std::get<7>(result)}};
}

CallGradients CudnnCalls::Backward(const AttentionCall& call, const CallBackward& saved) const {
  CheckDenseCall(call);
  CHECK(saved.lse.is_contiguous() && saved.lse.dim() == 3);
  const at::Tensor none;
  auto [dq, dk, dv] = at::_scaled_dot_product_cudnn_attention_backward(
      SwapHeads(saved.dout), SwapHeads(call.q), SwapHeads(call.k), SwapHeads(call.v), SwapHeads(saved.out),
      saved.lse.unsqueeze(3), saved.rng.state, saved.rng.unused, /*attn_bias=*/none, /*cum_seq_q=*/none,
      /*cum_seq_k=*/none, call.max_q, call.max_k, kNoDropout, call.causal, call.scale);
  return {SwapHeads(dq), SwapHeads(dk), SwapHeads(dv)};
}

}  // namespace stemma::worker::cuda
