// The head's rows, products with mixed operands, and what is asked of whole gradients, in ATen ops.
#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "worker/backend/accumulate_type.h"
#include "worker/backend/composed/composed_kernels.h"

namespace stemma::worker::composed {
namespace {

constexpr int64_t kNormSliceElements = 1 << 18;

// The head's ops make several tensors as large as the logits that they are given, which no plan counts where they stand
// in for a kernel: they are given so many rows at a time, whose numbers depend on no others.
constexpr int64_t kHeadSliceRows = 128;

at::Tensor SliceRows(const at::Tensor& x, int64_t begin, int64_t end) {
  return x.defined() ? x.slice(0, begin, end) : x;
}

void HeadForwardRows(const HeadForwardOperands& args) {
  const at::Tensor u = args.logits_TV * args.inverse_temperature;
  const at::Tensor max = u.amax(-1);
  const at::Tensor shifted = u - max.unsqueeze(1);
  const at::Tensor log_sum = shifted.exp().sum(-1).log();
  args.softmax_T2.select(1, 0).copy_(args.logits_TV.amax(-1));
  args.softmax_T2.select(1, 1).copy_(log_sum);
  const at::Tensor target_u = u.gather(1, args.targets_T.clamp_min(0).unsqueeze(1)).squeeze(1);
  args.log_prob_T.copy_(target_u.masked_fill(args.targets_T < 0, 0) - max - log_sum);
  if (!args.entropy_T.defined()) return;
  const at::Tensor log_p = shifted - log_sum.unsqueeze(1);
  args.entropy_T.copy_(-(log_p.exp() * log_p).sum(-1));
}

void HeadBackwardRows(const HeadBackwardOperands& args) {
  const at::ScalarType dtype = args.logits_TV.scalar_type();
  const auto column = [&](const at::Tensor& x) { return x.to(dtype).unsqueeze(1); };
  const at::Tensor shifted = (args.logits_TV - column(args.softmax_T2.select(1, 0))) * args.inverse_temperature;
  const at::Tensor log_p = shifted - column(args.softmax_T2.select(1, 1));
  const at::Tensor p = log_p.exp();
  at::Tensor dz = -column(args.dlog_prob_T) * p;
  at::Tensor is_zero = args.dlog_prob_T == 0;
  if (args.dentropy_T.defined()) {
    dz = dz - column(args.dentropy_T) * p * (log_p + column(args.entropy_T));
    is_zero = at::logical_and(is_zero, args.dentropy_T == 0);
  }
  const at::Tensor own_dlog_prob_T = args.dlog_prob_T.masked_fill(args.targets_T < 0, 0);
  dz.scatter_add_(1, args.targets_T.clamp_min(0).unsqueeze(1), column(own_dlog_prob_T));
  dz = dz * args.inverse_temperature;
  args.dlogits_TV.copy_(at::where(is_zero.unsqueeze(1), at::zeros_like(dz), dz));
}

}  // namespace

void HeadForward(const HeadForwardOperands& args) {
  for (int64_t begin = 0; begin < args.logits_TV.size(0); begin += kHeadSliceRows) {
    const auto rows = [&](const at::Tensor& x) { return SliceRows(x, begin, begin + kHeadSliceRows); };
    HeadForwardRows({rows(args.logits_TV), rows(args.targets_T), rows(args.softmax_T2), rows(args.log_prob_T),
                     rows(args.entropy_T), args.inverse_temperature});
  }
}

void HeadBackward(const HeadBackwardOperands& args) {
  for (int64_t begin = 0; begin < args.logits_TV.size(0); begin += kHeadSliceRows) {
    const auto rows = [&](const at::Tensor& x) { return SliceRows(x, begin, begin + kHeadSliceRows); };
    HeadBackwardRows({rows(args.logits_TV), rows(args.dlogits_TV), rows(args.targets_T), rows(args.softmax_T2),
                      rows(args.dlog_prob_T), rows(args.entropy_T), rows(args.dentropy_T), args.inverse_temperature});
  }
}

void AddWeightGradient(const WeightGradientOperands& args) {
  const at::ScalarType dtype = args.dweight_OI.scalar_type();
  args.dweight_OI.addmm_(args.dy_TO.to(dtype).t(), args.x_TI.to(dtype));
}

void Logits(const LogitsOperands& args) {
  const at::ScalarType dtype = args.logits_TV.scalar_type();
  args.logits_TV.copy_(at::mm(args.hidden_TD.to(dtype), args.weight_VD.to(dtype).t()));
}

void LogitsBackward(const LogitsBackwardOperands& args) {
  const at::ScalarType dtype = AccType(args.weight_VD.scalar_type());
  args.dhidden_TD.copy_(at::mm(args.dlogits_TV.to(dtype), args.weight_VD.to(dtype)));
}

// Goes slice by slice: LibTorch makes a copy in double of what it is given, and values may be an embedding's gradient.
void VectorNorm(const VectorNormOperands& args) {
  const std::vector<at::Tensor> slices = args.values.split(kNormSliceElements);
  const auto norm = [](const at::Tensor& slice) {
    return at::linalg_vector_norm(slice, 2, {}, /*keepdim=*/false, at::kDouble);
  };
  if (slices.size() == 1) {
    args.norm.copy_(norm(args.values));
    return;
  }
  at::Tensor squares = at::zeros({}, args.values.options().dtype(at::kDouble));
  for (const at::Tensor& slice : slices) squares.add_(norm(slice).square_());
  args.norm.copy_(squares.sqrt_());
}

void FirstNonfinite(const FirstNonfiniteOperands& args) {
  const at::Tensor bad = at::isfinite(args.values).logical_not();
  if (!bad.any().item<bool>()) {
    args.index.fill_(-1);
  } else {
    args.index.copy_(bad.to(at::kByte).argmax());
  }
}

}  // namespace stemma::worker::composed
