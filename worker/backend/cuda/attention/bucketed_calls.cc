#include "worker/backend/cuda/attention/bucketed_calls.h"

#include <ATen/ops/constant_pad_nd.h>
#include <glog/logging.h>

#include "worker/backend/cuda/attention/buckets.h"

namespace stemma::worker::cuda {
namespace {

// [B, S, heads, E] with `count` rows of zeros behind each entry's.
at::Tensor PadRows(const at::Tensor& x, int64_t count) { return at::constant_pad_nd(x, {0, 0, 0, 0, 0, count}); }

AttentionCall Pad(const AttentionCall& call, int64_t count) {
  AttentionCall padded = call;
  padded.q = PadRows(call.q, count);
  padded.max_q += count;
  if (call.causal) {
    padded.k = PadRows(call.k, count);
    padded.v = PadRows(call.v, count);
    padded.max_k += count;
  }
  return padded;
}

int64_t PaddingOf(const AttentionCall& call) {
  CHECK(!call.packed() && call.q.dim() == 4);
  CHECK(!call.causal || call.q.size(1) == call.k.size(1));
  return BucketOfRows(call.q.size(1)) - call.q.size(1);
}

}  // namespace

CallOutput BucketedCalls::Forward(const AttentionCall& call) const {
  const int64_t padding = PaddingOf(call);
  if (padding == 0) return calls_.Forward(call);
  CallOutput output = calls_.Forward(Pad(call, padding));
  output.out = output.out.narrow(1, 0, call.q.size(1));
  output.lse = output.lse.narrow(2, 0, call.q.size(1)).contiguous();
  return output;
}

CallGradients BucketedCalls::Backward(const AttentionCall& call, const CallBackward& saved) const {
  const int64_t padding = PaddingOf(call);
  if (padding == 0) return calls_.Backward(call, saved);
  CallGradients gradients =
      calls_.Backward(Pad(call, padding), {PadRows(saved.dout, padding), PadRows(saved.out, padding),
                                           at::constant_pad_nd(saved.lse, {0, padding}), saved.rng});
  gradients.dq = gradients.dq.narrow(1, 0, call.q.size(1));
  if (call.causal) {
    gradients.dk = gradients.dk.narrow(1, 0, call.k.size(1));
    gradients.dv = gradients.dv.narrow(1, 0, call.v.size(1));
  }
  return gradients;
}

}  // namespace stemma::worker::cuda
