#include "tests/worker/backend/cuda/attention/fake_flash_calls.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>

#include "worker/backend/accumulate_type.h"

namespace stemma::testing {
namespace {

using worker::cuda::AttentionCall;
using worker::cuda::CallBackward;
using worker::cuda::CallGradients;
using worker::cuda::CallOutput;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

at::Tensor Acc(const at::Tensor& x) { return x.to(AccType(x.scalar_type())); }

// Where a sequence lies: its batch entry, or its rows and keys.
struct Sequence {
  int64_t entry, row, rows, key, keys;
};

std::vector<Sequence> SequencesOf(const AttentionCall& call) {
  std::vector<Sequence> sequences;
  if (!call.packed()) {
    for (int64_t b = 0; b < call.q.size(0); ++b) sequences.push_back({b, 0, call.q.size(1), 0, call.k.size(1)});
    return sequences;
  }
  const int32_t *q = call.offsets_q.const_data_ptr<int32_t>(), *k = call.offsets_k.const_data_ptr<int32_t>();
  for (int64_t i = 0; i + 1 < call.offsets_q.numel(); ++i) {
    sequences.push_back({0, q[i], q[i + 1] - q[i], k[i], k[i + 1] - k[i]});
  }
  return sequences;
}

void CheckSequences(const AttentionCall& call) {
  int64_t longest_q = 0, longest_k = 0;
  for (const Sequence& s : SequencesOf(call)) {
    TORCH_CHECK(s.rows >= 0 && s.keys >= 0, "offsets that fall");
    longest_q = std::max(longest_q, s.rows);
    longest_k = std::max(longest_k, s.keys);
  }
  TORCH_CHECK(longest_q <= call.max_q && longest_k <= call.max_k, "a sequence is longer than max_q or max_k");
  const bool rows_are_batch = call.packed() && call.max_q == 1 && call.q.size(1) > call.k.size(1);
  TORCH_CHECK(!rows_are_batch || call.offsets_q.numel() - 1 == call.q.size(0), "a sequence without rows");
}

void CheckCall(const AttentionCall& call) {
  const int64_t dim = call.packed() ? 3 : 4;
  for (const at::Tensor& x : {call.q, call.k, call.v}) {
    TORCH_CHECK(x.dim() == dim && x.stride(-1) == 1 && x.scalar_type() == call.q.scalar_type());
    TORCH_CHECK(x.device() == call.q.device());
  }
  TORCH_CHECK(call.k.sizes() == call.v.sizes() && call.q.size(-2) % call.k.size(-2) == 0);
  TORCH_CHECK(call.q.numel() > 0, "an empty grid");
  if (call.packed()) {
    for (const at::Tensor& x : {call.offsets_q, call.offsets_k}) {
      TORCH_CHECK(x.dim() == 1 && x.scalar_type() == at::kInt && x.is_contiguous() && x.device() == call.q.device());
    }
    TORCH_CHECK(call.offsets_q.numel() == call.offsets_k.numel());
  } else {
    TORCH_CHECK(call.q.size(0) == call.k.size(0));
  }
  CheckSequences(call);
}

// Rows [S, heads, E] of a sequence, a view.
at::Tensor QueriesOf(const AttentionCall& call, const at::Tensor& x, const Sequence& s) {
  return call.packed() ? x.narrow(0, s.row, s.rows) : x.select(0, s.entry);
}

at::Tensor KeysOf(const AttentionCall& call, const at::Tensor& x, const Sequence& s) {
  return call.packed() ? x.narrow(0, s.key, s.keys) : x.select(0, s.entry);
}

// [H, S] of a sequence, a view.
at::Tensor LseOf(const AttentionCall& call, const at::Tensor& lse, const Sequence& s) {
  return call.packed() ? lse.narrow(1, s.row, s.rows) : lse.select(0, s.entry);
}

std::vector<int64_t> LseSizes(const AttentionCall& call) {
  if (call.packed()) return {call.q.size(1), call.q.size(0)};
  return {call.q.size(0), call.q.size(2), call.q.size(1)};
}

// [C, K, E] -> [H, C, E] in Acc.
at::Tensor PerHead(const at::Tensor& x_CKE, int64_t heads) {
  return Acc(x_CKE).repeat_interleave(heads / x_CKE.size(1), 1).transpose(0, 1);
}

at::Tensor Scores(const AttentionCall& call, const at::Tensor& q_SHE, const at::Tensor& k_HCE) {
  const int64_t rows = q_SHE.size(0), keys = k_HCE.size(1);
  const at::Tensor scores = at::matmul(Acc(q_SHE).transpose(0, 1), k_HCE.transpose(1, 2)) * call.scale;
  if (!call.causal) return scores;
  const at::Tensor all = at::ones({rows, keys}, scores.options().dtype(at::kBool));
  return scores.masked_fill(all.triu(keys - rows + 1), -kInfinity);
}

// [H, C, E] in Acc -> [C, K, E], each head rounded before heads are summed.
at::Tensor SumOfHeads(const at::Tensor& d_HCE, int64_t kv_heads, at::ScalarType dtype) {
  const at::Tensor rounded_CHE = d_HCE.transpose(0, 1).to(dtype).to(d_HCE.scalar_type());
  return rounded_CHE.unflatten(1, {kv_heads, -1}).sum(2).to(dtype);
}

AskedCall Asked(bool forward, const AttentionCall& call) {
  const int64_t batch = call.packed() ? call.offsets_q.numel() - 1 : call.q.size(0);
  const auto rows = [&](const at::Tensor& x) { return call.packed() ? x.size(0) : x.size(0) * x.size(1); };
  const bool shared_keys = !call.packed() && call.k.stride(0) == 0;
  return {forward, call.packed(), call.causal, batch, rows(call.q), rows(call.k), call.q.const_data_ptr(), shared_keys};
}

}  // namespace

bool FakeFlashCalls::Takes(at::ScalarType, int64_t head_size) const { return head_size % 8 == 0; }

int64_t FakeFlashCalls::Count(bool forward) const {
  return std::count_if(asked_.begin(), asked_.end(), [&](const AskedCall& call) { return call.forward == forward; });
}

CallOutput FakeFlashCalls::Forward(const AttentionCall& call) const {
  CheckCall(call);
  asked_.push_back(Asked(/*forward=*/true, call));
  CallOutput output{at::empty_like(call.q),
                    at::empty(LseSizes(call), call.q.options().dtype(AccType(call.q.scalar_type()))),
                    {at::empty({2}, at::TensorOptions(at::kUInt64)), at::empty({}, at::TensorOptions(at::kUInt64))}};
  for (const Sequence& s : SequencesOf(call)) {
    const at::Tensor out_SHE = QueriesOf(call, output.out, s), lse_HS = LseOf(call, output.lse, s);
    if (s.rows == 0) continue;
    if (s.keys == 0) {
      out_SHE.zero_();
      lse_HS.fill_(kInfinity);
      continue;
    }
    const int64_t heads = call.q.size(-2);
    const at::Tensor scores = Scores(call, QueriesOf(call, call.q, s), PerHead(KeysOf(call, call.k, s), heads));
    const at::Tensor max = scores.amax({2}, /*keepdim=*/true), p = (scores - max).exp(), sum = p.sum(2, true);
    out_SHE.copy_(at::matmul(p / sum, PerHead(KeysOf(call, call.v, s), heads)).transpose(0, 1));
    lse_HS.copy_((max + sum.log()).squeeze(2));
  }
  asked_.back().least_lse = output.lse.min().item<double>();
  asked_.back().greatest_lse = output.lse.max().item<double>();
  return output;
}

CallGradients FakeFlashCalls::Backward(const AttentionCall& call, const CallBackward& saved) const {
  CheckCall(call);
  asked_.push_back(Asked(/*forward=*/false, call));
  TORCH_CHECK(saved.lse.is_contiguous() && saved.lse.sizes() == at::IntArrayRef(LseSizes(call)), "the LSE's pointer");
  TORCH_CHECK(saved.lse.scalar_type() == AccType(call.q.scalar_type()));
  TORCH_CHECK(saved.out.sizes() == call.q.sizes() && saved.dout.sizes() == call.q.sizes());
  TORCH_CHECK(saved.rng.state.numel() == 2 && saved.rng.unused.numel() == 1, "no random state");
  CallGradients gradients{at::empty_like(call.q), at::empty_like(call.k), at::empty_like(call.v)};
  for (const Sequence& s : SequencesOf(call)) {
    TORCH_CHECK(s.rows > 0 && s.keys > 0, "an empty grid");
    const int64_t heads = call.q.size(-2), kv_heads = call.k.size(-2);
    const at::Tensor q_SHE = QueriesOf(call, call.q, s), k_HCE = PerHead(KeysOf(call, call.k, s), heads);
    const at::Tensor dout_HSE = Acc(QueriesOf(call, saved.dout, s)).transpose(0, 1);
    const at::Tensor out_HSE = Acc(QueriesOf(call, saved.out, s)).transpose(0, 1);
    const at::Tensor p = (Scores(call, q_SHE, k_HCE) - LseOf(call, saved.lse, s).unsqueeze(2)).exp();
    const at::Tensor dp = at::matmul(dout_HSE, PerHead(KeysOf(call, call.v, s), heads).transpose(1, 2));
    const at::Tensor ds = p * (dp - (dout_HSE * out_HSE).sum(2, /*keepdim=*/true)) * call.scale;
    QueriesOf(call, gradients.dq, s).copy_(at::matmul(ds, k_HCE).transpose(0, 1));
    const at::Tensor dk = at::matmul(ds.transpose(1, 2), Acc(q_SHE).transpose(0, 1));
    KeysOf(call, gradients.dk, s).copy_(SumOfHeads(dk, kv_heads, call.k.scalar_type()));
    KeysOf(call, gradients.dv, s)
        .copy_(SumOfHeads(at::matmul(p.transpose(1, 2), dout_HSE), kv_heads, call.v.scalar_type()));
  }
  return gradients;
}

CallGradients WrongFlashCalls::Backward(const AttentionCall& call, const CallBackward& saved) const {
  const CallOutput own = Forward(call);
  CallBackward wrong = saved;
  if (wrong_ != WrongBackward::kOwnLse) wrong.out = own.out;
  if (wrong_ != WrongBackward::kOwnOutput) wrong.lse = own.lse;
  if (wrong_ == WrongBackward::kOwnOutputAndLse) {
    const at::Tensor weight = (own.lse - saved.lse).exp();
    wrong.dout = (weight.transpose(-1, -2).unsqueeze(-1) * saved.dout).to(saved.dout.scalar_type());
  }
  return FakeFlashCalls::Backward(call, wrong);
}

}  // namespace stemma::testing
