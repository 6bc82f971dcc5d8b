#include "worker/model/cut_rollout.h"

#include <glog/logging.h>

#include "worker/model/context_exchange.h"
#include "worker/model/phase_parts.h"

namespace stemma::worker {

CutRollout::CutRollout(const LayerContext& context, int64_t rows)
    : context_(context),
      rows_(MakePrefixRows({rows}, /*block_rows=*/0, context.cp_rank(), context.cp_size())),
      index_(rows_, 0, rows, *context.backend) {
  CHECK_GE(rows, FewestCutRows(context.cp_size()));
}

std::pair<at::Tensor, at::Tensor> CutRollout::GatherNumbers(const at::Tensor& a_T, const at::Tensor& b_T) const {
  const auto as_kv = [](const at::Tensor& x_T) { return x_T.view({-1, 1, 1}); };
  const at::Tensor part = index_.Part(as_kv(a_T), as_kv(b_T));
  const at::Tensor parts = PendingExchange::Gather(*context_.cp, part, kCutLogProbsName).Wait();
  const at::Tensor a = a_T.new_empty({rows()}), b = b_T.new_empty({rows()});
  index_.Unpack(parts, as_kv(a), as_kv(b));
  return {a, b};
}

CutLayerKv::CutLayerKv(const CutRollout& cut, const AncestorKv& prefix, const at::Tensor& k, const at::Tensor& v)
    : cut_(cut), prefix_(prefix) {
  const LayerContext& context = cut.context();
  const int64_t rows = prefix_rows() + cut.rows();
  all_.k_CKE = EmptyKv(context, rows);
  all_.v_CKE = EmptyKv(context, rows);
  if (prefix_rows() > 0) {
    all_.k_CKE.slice(0, 0, prefix_rows()).copy_(prefix_.k_CKE);
    all_.v_CKE.slice(0, 0, prefix_rows()).copy_(prefix_.v_CKE);
  }
  if (!k.defined()) return;
  Made(k, v);
  all_.gk_CKE = ZeroKv(context, rows);
  all_.gv_CKE = ZeroKv(context, rows);
}

AttentionBatch CutLayerKv::Batch() const {
  return BatchOfPieces(cut_.context(), cut_.pieces(), prefix_rows(),
                       [&](const ContextPiece& /*piece*/, int64_t earlier) { return all_.Rows(0, earlier); });
}

void CutLayerKv::Made(const at::Tensor& k_TKE, const at::Tensor& v_TKE) const {
  const PartIndex& index = cut_.index();
  const at::Tensor parts = PendingExchange::Gather(*cut_.context().cp, index.Part(k_TKE, v_TKE), kCutKvName).Wait();
  index.Unpack(parts, Suffix(all_.k_CKE), Suffix(all_.v_CKE));
}

KvGradients CutLayerKv::Gradients() const {
  all_.k_CKE.reset();
  all_.v_CKE.reset();
  if (prefix_rows() > 0) {
    prefix_.gk_CKE.add_(all_.gk_CKE.slice(0, 0, prefix_rows()));
    prefix_.gv_CKE.add_(all_.gv_CKE.slice(0, 0, prefix_rows()));
  }
  const at::Tensor parts = cut_.index().Parts(Suffix(all_.gk_CKE), Suffix(all_.gv_CKE));
  all_ = {};
  const at::Tensor sum = PendingExchange::Sum(*cut_.context().cp, parts, kCutGradientsName).Wait();
  return {sum[0].narrow(0, 0, cut_.own_rows()), sum[1].narrow(0, 0, cut_.own_rows())};
}

}  // namespace stemma::worker
