#include "worker/backend/cuda/attention/composed_attention_kernels.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/sum.h>
#include <glog/logging.h>

#include "worker/backend/accumulate_type.h"

namespace stemma::worker::cuda {
namespace {

at::Tensor Acc(const at::Tensor& x) { return x.to(AccType(x.scalar_type())); }

void Merge(const MergeOperands& args) {
  CHECK(args.a_THE.sizes() == args.b_THE.sizes() && args.a_THE.sizes() == args.o_THE.sizes());
  CHECK(args.lse_a_HT.sizes() == args.lse_b_HT.sizes() && args.lse_a_HT.sizes() == args.lse_HT.sizes());
  const at::Tensor w_TH1 = at::sigmoid(args.lse_a_HT - args.lse_b_HT).transpose(0, 1).unsqueeze(2);
  const at::Tensor b_THE = Acc(args.b_THE);
  args.o_THE.copy_(b_THE + w_TH1 * (Acc(args.a_THE) - b_THE));
  // ATen's softplus gives x itself where x > 20, which fp64 can tell from its value; logaddexp is the same sum.
  args.lse_HT.copy_(at::logaddexp(args.lse_a_HT, args.lse_b_HT));
}

void AddParts(const AddPartsOperands& args) {
  CHECK(args.parts_NCKE.sizes().slice(1) == args.sum_CKE.sizes());
  args.sum_CKE.add_(at::sum(args.parts_NCKE, {0}, /*keepdim=*/false, args.sum_CKE.scalar_type()));
}

}  // namespace

AttentionKernels ComposedAttentionKernels() { return {.merge = Merge, .add_parts = AddParts}; }

}  // namespace stemma::worker::cuda
