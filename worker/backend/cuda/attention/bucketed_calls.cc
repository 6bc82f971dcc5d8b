#include "worker/backend/cuda/attention/bucketed_calls.h"

#include <ATen/ops/empty.h>
#include <glog/logging.h>

#include <vector>

#include "worker/backend/cuda/attention/buckets.h"

namespace stemma::worker::cuda {
namespace {

// `x` with `count` zeros behind its elements of a dimension. at::constant_pad_nd fills all of it before it copies.
at::Tensor Pad(const at::Tensor& x, int64_t dimension, int64_t count) {
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes[static_cast<size_t>(dimension)] += count;
  at::Tensor padded = at::empty(sizes, x.options());
  padded.narrow(dimension, 0, x.size(dimension)).copy_(x);
  padded.narrow(dimension, x.size(dimension), count).zero_();
  return padded;
}

// [B, S, heads, E] with `count` rows of zeros behind each entry's.
at::Tensor PadRows(const at::Tensor& x, int64_t count) { return Pad(x, 1, count); }

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
  CallGradients gradients = calls_.Backward(
      Pad(call, padding),
      {PadRows(saved.dout, padding), PadRows(saved.out, padding), Pad(saved.lse, 2, padding), saved.rng});
  gradients.dq = gradients.dq.narrow(1, 0, call.q.size(1));
  if (call.causal) {
    gradients.dk = gradients.dk.narrow(1, 0, call.k.size(1));
    gradients.dv = gradients.dv.narrow(1, 0, call.v.size(1));
  }
  return gradients;
}

}  // namespace stemma::worker::cuda
