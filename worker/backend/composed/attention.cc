// Attention on whole scores: the softmax of each row over its ancestor's keys and its own span's, without a split and
// without a merge, so that it shares no algebra with the backends that it is compared with.
#include <ATen/ATen.h>

#include <limits>

#include "worker/backend/accumulate_type.h"
#include "worker/backend/composed/composed_backend.h"
#include "worker/backend/composed/composed_kernels.h"

namespace stemma::worker {
namespace {

using composed::Acc;

// One span with its ancestor: q [K, g, rows, E]; k, v [K, 1, C + rows, E].
struct SpanTensors {
  at::Tensor q, k, v;
  int64_t ancestor_rows = 0;
};

class ComposedAttention final : public AttentionOp {
 public:
  AttentionSaved Forward(const AttentionBatch& batch, const at::Tensor& q_HTE, const at::Tensor& k_TKE,
                         const at::Tensor& v_TKE) const override {
    const int64_t heads = q_HTE.size(0), rows = q_HTE.size(1), head_size = q_HTE.size(2);
    AttentionSaved saved{q_HTE, k_TKE, v_TKE, at::empty({rows, heads * head_size}, q_HTE.options()),
                         at::empty({heads, rows}, q_HTE.options().dtype(AccType(q_HTE.scalar_type())))};
    for (const AttentionSpan& span : batch.spans) {
      if (span.begin == span.end) continue;
      const SpanTensors x = TensorsOf(batch, span, saved);
      const at::Tensor scores = Scores(x, batch.scale);
      const at::Tensor lse = at::logsumexp(scores, -1);
      const at::Tensor out = at::matmul(at::exp(scores - lse.unsqueeze(-1)), x.v);
      OutputRows(saved.o_TD, span, x).copy_(out);
      saved.lse_HT.narrow(1, span.begin, span.end - span.begin).copy_(lse.flatten(0, 1));
    }
    return saved;
  }

  AttentionGradients Backward(const AttentionBatch& batch, const at::Tensor& do_TD,
                              const AttentionSaved& saved) const override {
    AttentionGradients gradients{at::empty_like(saved.q_HTE, at::MemoryFormat::Contiguous),
                                 at::empty_like(saved.k_TKE, at::MemoryFormat::Contiguous),
                                 at::empty_like(saved.v_TKE, at::MemoryFormat::Contiguous)};
    for (const AttentionSpan& span : batch.spans) {
      if (span.begin == span.end) continue;
      const SpanTensors x = TensorsOf(batch, span, saved);
      const int64_t own = span.end - span.begin;
      const at::Tensor p = at::softmax(Scores(x, batch.scale), -1);
      const at::Tensor dout = Acc(OutputRows(do_TD, span, x));
      const at::Tensor dp = at::matmul(dout, x.v.transpose(-1, -2));
      const at::Tensor ds = p * (dp - (p * dp).sum(-1, /*keepdim=*/true)) * batch.scale;
      gradients.dq_HTE.narrow(1, span.begin, own).copy_(at::matmul(ds, x.k).flatten(0, 1));
      // Query heads of one kv head add up.
      const at::Tensor dk = at::matmul(ds.transpose(-1, -2), x.q).sum(1).transpose(0, 1);
      const at::Tensor dv = at::matmul(p.transpose(-1, -2), dout).sum(1).transpose(0, 1);
      gradients.dk_TKE.narrow(0, span.begin, own).copy_(dk.narrow(0, x.ancestor_rows, own));
      gradients.dv_TKE.narrow(0, span.begin, own).copy_(dv.narrow(0, x.ancestor_rows, own));
      if (x.ancestor_rows == 0) continue;
      const AncestorKv& ancestor = batch.ancestors[static_cast<size_t>(span.ancestor)];
      ancestor.gk_CKE.add_(dk.narrow(0, 0, x.ancestor_rows));
      ancestor.gv_CKE.add_(dv.narrow(0, 0, x.ancestor_rows));
    }
    return gradients;
  }

 private:
  static SpanTensors TensorsOf(const AttentionBatch& batch, const AttentionSpan& span, const AttentionSaved& saved) {
    const int64_t num_kv_heads = saved.k_TKE.size(1), count = span.end - span.begin;
    const auto own = [&](const at::Tensor& x_TKE) { return Acc(x_TKE.narrow(0, span.begin, count)).transpose(0, 1); };
    const at::Tensor q = Acc(saved.q_HTE.narrow(1, span.begin, count));
    SpanTensors x{q.unflatten(0, {num_kv_heads, -1}), own(saved.k_TKE), own(saved.v_TKE)};
    if (span.ancestor >= 0) {
      const AncestorKv& ancestor = batch.ancestors[static_cast<size_t>(span.ancestor)];
      x.ancestor_rows = ancestor.k_CKE.size(0);
      x.k = at::cat({Acc(ancestor.k_CKE).transpose(0, 1), x.k}, 1);
      x.v = at::cat({Acc(ancestor.v_CKE).transpose(0, 1), x.v}, 1);
    }
    x.k = x.k.unsqueeze(1);
    x.v = x.v.unsqueeze(1);
    return x;
  }

  // [K, g, rows, C + rows]; a row sees no own key after itself.
  static at::Tensor Scores(const SpanTensors& x, double scale) {
    const at::Tensor scores = at::matmul(x.q, x.k.transpose(-1, -2)) * scale;
    const at::Tensor hidden =
        at::ones({x.q.size(2), x.k.size(2)}, scores.options().dtype(at::kBool)).triu(x.ancestor_rows + 1);
    return scores.masked_fill(hidden, -std::numeric_limits<double>::infinity());
  }

  // The span's rows of [T, H·E] as [K, g, rows, E], a view.
  static at::Tensor OutputRows(const at::Tensor& x_TD, const AttentionSpan& span, const SpanTensors& x) {
    return x_TD.narrow(0, span.begin, span.end - span.begin)
        .view({span.end - span.begin, x.q.size(0), x.q.size(1), x.q.size(3)})
        .permute({1, 2, 0, 3});
  }
};

}  // namespace

std::shared_ptr<const AttentionOp> MakeComposedAttention() { return std::make_shared<ComposedAttention>(); }

}  // namespace stemma::worker
