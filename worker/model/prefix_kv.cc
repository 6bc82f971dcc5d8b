#include "worker/model/prefix_kv.h"

namespace stemma::worker {

AncestorKv LocalPrefixKv::Get(int64_t layer, int64_t prefix) {
  const auto l = static_cast<size_t>(layer);
  const AttentionSpan& span = spans[static_cast<size_t>(prefix)];
  AncestorKv all{k_TKE[l], v_TKE[l], {}, {}};
  if (!gk_TKE.empty()) {
    all.gk_CKE = gk_TKE[l];
    all.gv_CKE = gv_TKE[l];
  }
  return all.Rows(span.begin, span.end);
}

}  // namespace stemma::worker
