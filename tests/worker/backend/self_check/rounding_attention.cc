#include "tests/worker/backend/self_check/rounding_attention.h"

#include <ATen/ATen.h>

#include <limits>

namespace stemma::testing {
namespace {

at::Tensor Float(const at::Tensor& x) { return x.to(at::kFloat); }
at::Tensor Round(const at::Tensor& x) { return x.to(at::kBFloat16).to(at::kFloat); }

// Rows of q [H, rows, E] over keys [H, n, E], each kv head repeated for its query heads.
struct Part {
  at::Tensor q, k, v;
  bool causal = false;
  double scale = 1;
};

at::Tensor ByHead(const at::Tensor& x_TKE, int64_t heads) {
  return Float(x_TKE).transpose(0, 1).repeat_interleave(heads / x_TKE.size(1), 0);
}

at::Tensor Scores(const Part& part) {
  const at::Tensor scores = at::matmul(part.q, part.k.transpose(1, 2)) * part.scale;
  if (!part.causal) return scores;
  const at::Tensor hidden = at::ones({part.q.size(1), part.k.size(1)}, at::kBool).triu(1);
  return scores.masked_fill(hidden, -std::numeric_limits<double>::infinity());
}

struct Output {
  at::Tensor out, lse;
};

Output Forward(const Part& part) {
  const at::Tensor scores = Scores(part), max = scores.amax(-1, /*keepdim=*/true);
  const at::Tensor p = at::exp(scores - max), sum = p.sum(-1, /*keepdim=*/true);
  return {Round(at::matmul(Round(p), part.v) / sum), (max + sum.log()).squeeze(-1)};
}

struct Gradients {
  at::Tensor dq_HTE, dk_TKE, dv_TKE;  // of one part
};

Gradients Backward(const Part& part, const Output& merged, const at::Tensor& dout, int64_t num_kv_heads) {
  const at::Tensor p = at::exp(Scores(part) - merged.lse.unsqueeze(-1));
  const at::Tensor delta = (dout * merged.out).sum(-1, /*keepdim=*/true);
  const at::Tensor ds = Round(p * (at::matmul(dout, part.v.transpose(1, 2)) - delta));
  const auto of_keys = [&](const at::Tensor& per_head) {
    return Round(Round(per_head).unflatten(0, {num_kv_heads, -1}).sum(1)).transpose(0, 1);
  };
  return {Round(at::matmul(ds, part.k) * part.scale), of_keys(at::matmul(ds.transpose(1, 2), part.q) * part.scale),
          of_keys(at::matmul(Round(p).transpose(1, 2), dout))};
}

class RoundingAttention final : public AttentionOp {
 public:
  AttentionSaved Forward(const AttentionBatch& batch, const at::Tensor& q_HTE, const at::Tensor& k_TKE,
                         const at::Tensor& v_TKE) const override {
    const int64_t heads = q_HTE.size(0), rows = q_HTE.size(1), head_size = q_HTE.size(2);
    AttentionSaved saved{q_HTE, k_TKE, v_TKE, at::empty({rows, heads * head_size}, q_HTE.options()),
                         at::empty({heads, rows}, at::kFloat)};
    for (const AttentionSpan& span : batch.spans) {
      const int64_t count = span.end - span.begin;
      Output merged = testing::Forward(OwnPart(batch, span, saved));
      if (span.ancestor >= 0) {
        const Output other = testing::Forward(AncestorPart(batch, span, saved));
        const at::Tensor weight = at::sigmoid(other.lse - merged.lse).unsqueeze(-1);
        merged = {merged.out + weight * (other.out - merged.out), at::logaddexp(other.lse, merged.lse)};
      }
      saved.o_TD.narrow(0, span.begin, count).copy_(merged.out.transpose(0, 1).reshape({count, heads * head_size}));
      saved.lse_HT.narrow(1, span.begin, count).copy_(merged.lse);
    }
    return saved;
  }

  AttentionGradients Backward(const AttentionBatch& batch, const at::Tensor& do_TD,
                              const AttentionSaved& saved) const override {
    AttentionGradients gradients{at::empty_like(saved.q_HTE), at::empty_like(saved.k_TKE), at::empty_like(saved.v_TKE)};
    const int64_t heads = saved.q_HTE.size(0), num_kv_heads = saved.k_TKE.size(1);
    for (const AttentionSpan& span : batch.spans) {
      const int64_t begin = span.begin, count = span.end - span.begin;
      const auto by_head = [&](const at::Tensor& x_TD) {
        return Float(x_TD.narrow(0, begin, count)).unflatten(1, {heads, -1}).transpose(0, 1);
      };
      const Output merged{by_head(saved.o_TD), saved.lse_HT.narrow(1, begin, count)};
      const at::Tensor dout = by_head(do_TD);
      const Gradients own = testing::Backward(OwnPart(batch, span, saved), merged, dout, num_kv_heads);
      at::Tensor dq = own.dq_HTE;
      gradients.dk_TKE.narrow(0, begin, count).copy_(own.dk_TKE);
      gradients.dv_TKE.narrow(0, begin, count).copy_(own.dv_TKE);
      if (span.ancestor >= 0) {
        const Gradients other = testing::Backward(AncestorPart(batch, span, saved), merged, dout, num_kv_heads);
        const AncestorKv& kv = batch.ancestors[static_cast<size_t>(span.ancestor)];
        kv.gk_CKE.add_(other.dk_TKE);
        kv.gv_CKE.add_(other.dv_TKE);
        dq = dq + other.dq_HTE;
      }
      gradients.dq_HTE.narrow(1, begin, count).copy_(dq);
    }
    return gradients;
  }

 private:
  static at::Tensor Queries(const AttentionSpan& span, const AttentionSaved& saved) {
    return Float(saved.q_HTE.narrow(1, span.begin, span.end - span.begin));
  }
  static Part OwnPart(const AttentionBatch& batch, const AttentionSpan& span, const AttentionSaved& saved) {
    const int64_t count = span.end - span.begin, heads = saved.q_HTE.size(0);
    return {Queries(span, saved), ByHead(saved.k_TKE.narrow(0, span.begin, count), heads),
            ByHead(saved.v_TKE.narrow(0, span.begin, count), heads), /*causal=*/true, batch.scale};
  }
  static Part AncestorPart(const AttentionBatch& batch, const AttentionSpan& span, const AttentionSaved& saved) {
    const AncestorKv& kv = batch.ancestors[static_cast<size_t>(span.ancestor)];
    const int64_t heads = saved.q_HTE.size(0);
    return {Queries(span, saved), ByHead(kv.k_CKE, heads), ByHead(kv.v_CKE, heads), /*causal=*/false, batch.scale};
  }
};

}  // namespace

std::shared_ptr<const AttentionOp> MakeRoundingAttention() { return std::make_shared<RoundingAttention>(); }

}  // namespace stemma::testing
