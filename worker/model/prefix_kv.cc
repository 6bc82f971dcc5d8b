#include "worker/model/prefix_kv.h"

namespace stemma::worker {

AncestorKv LocalPrefixKv::Get(int64_t layer, int64_t prefix) {
  const auto l = static_cast<size_t>(layer);
  const AttentionSpan& span = spans[static_cast<size_t>(prefix)];
  const auto rows = [&](const at::Tensor& t) { return t.slice(0, span.begin, span.end); };
  AncestorKv ancestor{rows(k_TKE[l]), rows(v_TKE[l]), {}, {}};
  if (!gk_TKE.empty()) {
    ancestor.gk_CKE = rows(gk_TKE[l]);
    ancestor.gv_CKE = rows(gv_TKE[l]);
  }
  return ancestor;
}

}  // namespace stemma::worker
