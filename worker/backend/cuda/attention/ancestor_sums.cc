#include "worker/backend/cuda/attention/ancestor_sums.h"

#include <glog/logging.h>

namespace stemma::worker::cuda {

void AddToAncestors(const AttentionKernels& kernels, const AncestorCall& call, const at::Tensor& dk,
                    const at::Tensor& dv) {
  int64_t key = 0;
  at::Tensor parts_k, parts_v, sum_k, sum_v;
  const auto add = [&] {
    if (!sum_k.defined()) return;
    kernels.add_parts({parts_k, sum_k});
    kernels.add_parts({parts_v, sum_v});
  };
  // Neighbouring accumulators are added to at once.
  int64_t first_key = 0;
  for (const AncestorCall::Sequence& sequence : call.sequences) {
    const AncestorKv& kv = sequence.kv;
    CHECK(kv.gk_CKE.defined() && kv.gv_CKE.defined()) << "a backward needs gk and gv";
    const at::Tensor joined_k = sum_k.defined() ? JoinedRows(sum_k, kv.gk_CKE) : at::Tensor();
    const at::Tensor joined_v = sum_v.defined() ? JoinedRows(sum_v, kv.gv_CKE) : at::Tensor();
    const bool joins = joined_k.defined() && joined_v.defined();
    if (!joins) {
      add();
      first_key = key;
    }
    sum_k = joins ? joined_k : kv.gk_CKE;
    sum_v = joins ? joined_v : kv.gv_CKE;
    key += kv.k_CKE.size(0);
    parts_k = dk.narrow(1, first_key, key - first_key);
    parts_v = dv.narrow(1, first_key, key - first_key);
  }
  add();
}

}  // namespace stemma::worker::cuda
