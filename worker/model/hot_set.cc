#include "worker/model/hot_set.h"

#include <ATen/ops/empty.h>
#include <glog/logging.h>

#include "worker/model/phase_parts.h"

namespace stemma::worker {
namespace {

at::Tensor Rows(const at::Tensor& x_TKE, const PrefixBlockRows& block) {
  return x_TKE.slice(0, block.begin, block.end);
}

}  // namespace

AncestorKv LocalHotSet::Get(int64_t layer, int64_t prefix, PrefixUse /*use*/) {
  const auto l = static_cast<size_t>(layer);
  AncestorKv all{k_TKE[l], v_TKE[l], {}, {}};
  if (!gk_TKE.empty()) {
    all.gk_CKE = gk_TKE[l];
    all.gv_CKE = gv_TKE[l];
  }
  return all.Rows(rows_.begins[static_cast<size_t>(prefix)], rows_.end_of(prefix));
}

// With one block, keeps the op's tensor. With several, copies it into their shared buffer, of which it becomes a view.
void LocalHotSet::Store(const PrefixBlockRows& block, int64_t layer, std::vector<at::Tensor>& of_layers,
                        at::Tensor& kv_TKE) const {
  if (rows_.blocks.size() == 1) {
    of_layers.push_back(kv_TKE);
    return;
  }
  if (block.begin == 0) {
    of_layers.push_back(at::empty({rows_.rows, kv_TKE.size(1), kv_TKE.size(2)}, kv_TKE.options()));
  }
  const at::Tensor rows = Rows(of_layers[static_cast<size_t>(layer)], block);
  rows.copy_(kv_TKE);
  kv_TKE = rows;
}

void LocalHotSet::Keep(const PrefixBlockRows& block, int64_t layer, PrefixPass pass, at::Tensor& k, at::Tensor& v) {
  if (pass == PrefixPass::kForward) {
    Store(block, layer, k_TKE, k);
    Store(block, layer, v_TKE, v);
    return;
  }
  k = Rows(k_TKE[static_cast<size_t>(layer)], block);
  v = Rows(v_TKE[static_cast<size_t>(layer)], block);
}

KvGradients LocalHotSet::Gradients(const PrefixBlockRows& block, int64_t layer) {
  return {Rows(gk_TKE[static_cast<size_t>(layer)], block), Rows(gv_TKE[static_cast<size_t>(layer)], block)};
}

void LocalHotSet::Free(int64_t layer) {
  CHECK_EQ(static_cast<size_t>(layer) + 1, k_TKE.size()) << "layers are freed from the last one down";
  for (auto* of_layers : {&k_TKE, &v_TKE, &gk_TKE, &gv_TKE}) of_layers->pop_back();
}

void LocalHotSet::MakeGradients(const LayerContext& context) {
  for (int64_t l = 0; l < context.layers(); ++l) {
    for (auto* of_layers : {&gk_TKE, &gv_TKE}) of_layers->push_back(ZeroKv(context, rows_.rows));
  }
}

}  // namespace stemma::worker
