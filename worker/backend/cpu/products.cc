// Products of bf16 operands with fp32 sums. The CPU has no such GEMM: operands are upcast slice by slice, here and
// nowhere else. A bf16 product is exact in fp32, so this is what a device's fp32-accumulating GEMM gives.
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "common/cost/kernel_blocks.h"
#include "worker/backend/cpu/cpu_kernels.h"

namespace stemma::worker {
namespace {

// Calls f(first vocabulary row, rows of the weight in `dtype`).
template <typename F>
void ForVocabularySlices(const at::Tensor& weight_VD, at::ScalarType dtype, const F& f) {
  const int64_t vocab = weight_VD.size(0);
  const int64_t step = weight_VD.scalar_type() == dtype ? vocab : kUpcastVocabulary;
  for (int64_t begin = 0; begin < vocab; begin += step) {
    f(begin, weight_VD.narrow(0, begin, std::min(step, vocab - begin)).to(dtype));
  }
}

}  // namespace

void CpuAddWeightGradient(const WeightGradientOperands& args) {
  const at::ScalarType dtype = args.dweight_OI.scalar_type();
  if (args.dy_TO.scalar_type() == dtype) {
    args.dweight_OI.addmm_(args.dy_TO.t(), args.x_TI.to(dtype));
    return;
  }
  const int64_t rows = args.x_TI.size(0);
  for (int64_t begin = 0; begin < rows; begin += kUpcastRows) {
    const int64_t count = std::min(kUpcastRows, rows - begin);
    const at::Tensor dy = args.dy_TO.narrow(0, begin, count).to(dtype);
    const at::Tensor x = args.x_TI.narrow(0, begin, count).to(dtype);
    args.dweight_OI.addmm_(dy.t(), x);
  }
}

void CpuLogits(const LogitsOperands& args) {
  const at::ScalarType dtype = args.logits_TV.scalar_type();
  const at::Tensor hidden = args.hidden_TD.to(dtype);
  ForVocabularySlices(args.weight_VD, dtype, [&](int64_t begin, const at::Tensor& weight) {
    at::Tensor columns = args.logits_TV.narrow(1, begin, weight.size(0));
    at::mm_out(columns, hidden, weight.t());
  });
}

void CpuLogitsBackward(const LogitsBackwardOperands& args) {
  const at::ScalarType dtype = args.dlogits_TV.scalar_type();
  at::Tensor dhidden = args.dhidden_TD;
  if (dhidden.scalar_type() == dtype) {
    at::mm_out(dhidden, args.dlogits_TV, args.weight_VD);
    return;
  }
  at::Tensor sum = at::zeros(dhidden.sizes(), args.dlogits_TV.options());
  ForVocabularySlices(args.weight_VD, dtype, [&](int64_t begin, const at::Tensor& weight) {
    sum.addmm_(args.dlogits_TV.narrow(1, begin, weight.size(0)), weight);
  });
  dhidden.copy_(sum);
}

}  // namespace stemma::worker
