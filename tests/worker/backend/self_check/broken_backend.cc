#include "tests/worker/backend/self_check/broken_backend.h"

#include <ATen/ATen.h>
#include <glog/logging.h>

#include <limits>
#include <memory>
#include <utility>

#include "worker/backend/composed/composed_backend.h"

namespace stemma::testing {
namespace {

// A result of each entry, and an operand that it reads to its end.
const at::Tensor& ResultOf(const RmsNormForwardOperands& args) { return args.y_TD; }
const at::Tensor& ResultOf(const RmsNormBackwardOperands& args) { return args.dx_TD; }
const at::Tensor& ResultOf(const SwigluForwardOperands& args) { return args.y_TF; }
const at::Tensor& ResultOf(const SwigluBackwardOperands& args) { return args.dgate_up_TJ; }
const at::Tensor& ResultOf(const QkvForwardOperands& args) { return args.k_TKE; }
const at::Tensor& ResultOf(const QkvBackwardOperands& args) { return args.dqkv_TJ; }
const at::Tensor& ResultOf(const EmbeddingBackwardOperands& args) { return args.dweight_VD; }
const at::Tensor& ResultOf(const HeadForwardOperands& args) { return args.log_prob_T; }
const at::Tensor& ResultOf(const HeadBackwardOperands& args) { return args.dlogits_TV; }
const at::Tensor& ResultOf(const LossOperands& args) { return args.dlog_prob_T; }
const at::Tensor& ResultOf(const WeightGradientOperands& args) { return args.dweight_OI; }
const at::Tensor& ResultOf(const LogitsOperands& args) { return args.logits_TV; }
const at::Tensor& ResultOf(const LogitsBackwardOperands& args) { return args.dhidden_TD; }
const at::Tensor& ResultOf(const VectorNormOperands& args) { return args.norm; }

const at::Tensor& ReadBy(const RmsNormForwardOperands& args) { return args.x_TD; }
const at::Tensor& ReadBy(const RmsNormBackwardOperands& args) { return args.dy_TD; }
const at::Tensor& ReadBy(const SwigluForwardOperands& args) { return args.gate_up_TJ; }
const at::Tensor& ReadBy(const SwigluBackwardOperands& args) { return args.dy_TF; }
const at::Tensor& ReadBy(const QkvForwardOperands& args) { return args.qkv_TJ; }
const at::Tensor& ReadBy(const QkvBackwardOperands& args) { return args.dk_TKE; }
const at::Tensor& ReadBy(const EmbeddingBackwardOperands& args) { return args.dx_TD; }
const at::Tensor& ReadBy(const HeadForwardOperands& args) { return args.logits_TV; }
const at::Tensor& ReadBy(const HeadBackwardOperands& args) { return args.dlog_prob_T; }
const at::Tensor& ReadBy(const LossOperands& args) { return args.rows.weight_T; }
const at::Tensor& ReadBy(const WeightGradientOperands& args) { return args.x_TI; }
const at::Tensor& ReadBy(const LogitsOperands& args) { return args.weight_VD; }
const at::Tensor& ReadBy(const LogitsBackwardOperands& args) { return args.weight_VD; }
const at::Tensor& ReadBy(const VectorNormOperands& args) { return args.values; }

at::Tensor ElementAfter(const at::Tensor& x) { return x.as_strided({1}, {1}, x.storage_offset() + x.numel()); }

// Makes `result`, which was `before` before the call, wrong; every result that is not empty changes.
void Spoil(Fault fault, const at::Tensor& result, const at::Tensor& before, const at::Tensor& operand) {
  at::Tensor flat = result.view(-1);
  const int64_t middle = flat.numel() / 2;
  switch (fault) {
    case Fault::kScaled:
      result.mul_(1.03);
      return;
    case Fault::kUnwritten:
      flat[middle].copy_(before.view(-1)[middle]);
      return;
    case Fault::kNan:
      flat[flat.numel() - 1] = std::numeric_limits<double>::quiet_NaN();
      return;
    case Fault::kReadsPastEnd:
      flat.narrow(0, 0, 1).add_(ElementAfter(operand));
      return;
    case Fault::kWritesPastEnd:
      ElementAfter(result).zero_();
      return;
    case Fault::kThrows:
      TORCH_CHECK(false, "no kernel image is available\nfor this device");
  }
}

template <auto kEntry, typename Args, Fault kFault>
void BrokenEntry(const Args& args) {
  const at::Tensor before = ResultOf(args).clone();
  (ComposedKernels().*kEntry)(args);
  Spoil(kFault, ResultOf(args), before, ReadBy(args));
}

template <auto kEntry, typename Args>
void BreakEntry(Fault fault, void (*Kernels::*)(const Args&), Backend& backend) {
  switch (fault) {
    case Fault::kScaled:
      backend.kernels.*kEntry = BrokenEntry<kEntry, Args, Fault::kScaled>;
      return;
    case Fault::kUnwritten:
      backend.kernels.*kEntry = BrokenEntry<kEntry, Args, Fault::kUnwritten>;
      return;
    case Fault::kNan:
      backend.kernels.*kEntry = BrokenEntry<kEntry, Args, Fault::kNan>;
      return;
    case Fault::kThrows:
      backend.kernels.*kEntry = BrokenEntry<kEntry, Args, Fault::kThrows>;
      return;
    case Fault::kReadsPastEnd:
      backend.kernels.*kEntry = BrokenEntry<kEntry, Args, Fault::kReadsPastEnd>;
      return;
    case Fault::kWritesPastEnd:
      backend.kernels.*kEntry = BrokenEntry<kEntry, Args, Fault::kWritesPastEnd>;
      return;
  }
}

template <auto kEntry>
bool BreakKernel(Fault fault, Backend& backend) {
  BreakEntry<kEntry>(fault, kEntry, backend);
  return true;
}

// The search's result is an integer, which has no NaN and no neighbour that is a number of the same kind.
bool BreakFirstNonfinite(Fault fault, Backend& backend) {
  switch (fault) {
    case Fault::kScaled:
      backend.kernels.first_nonfinite = [](const FirstNonfiniteOperands& args) {
        ComposedKernels().first_nonfinite(args);
        args.index.mul_(2);
      };
      return true;
    case Fault::kUnwritten:  // the last element is not looked at
      backend.kernels.first_nonfinite = [](const FirstNonfiniteOperands& args) {
        ComposedKernels().first_nonfinite({args.values.narrow(0, 0, args.values.numel() - 1), args.index});
      };
      return true;
    case Fault::kReadsPastEnd:
      backend.kernels.first_nonfinite = [](const FirstNonfiniteOperands& args) {
        const at::Tensor more = args.values.as_strided({args.values.numel() + 1}, {1}, args.values.storage_offset());
        ComposedKernels().first_nonfinite({more, args.index});
      };
      return true;
    case Fault::kThrows:
      backend.kernels.first_nonfinite = [](const FirstNonfiniteOperands&) {
        TORCH_CHECK(false, "no kernel image is available\nfor this device");
      };
      return true;
    default:
      return false;
  }
}

// The sum of words is an integer, which has no NaN and no neighbour that is a number of the same kind.
bool BreakWordSum(Fault fault, Backend& backend) {
  switch (fault) {
    case Fault::kScaled:
      backend.kernels.word_sum = [](const WordSumOperands& args) {
        ComposedKernels().word_sum(args);
        args.sum.mul_(3);
      };
      return true;
    case Fault::kUnwritten:
      backend.kernels.word_sum = [](const WordSumOperands&) {};
      return true;
    case Fault::kReadsPastEnd:
      backend.kernels.word_sum = [](const WordSumOperands& args) {
        const at::Tensor more = args.values.as_strided({args.values.numel() + 1}, {1}, args.values.storage_offset());
        ComposedKernels().word_sum({more, args.first, args.columns, args.row_begin, args.column_begin, args.sum});
      };
      return true;
    case Fault::kThrows:
      backend.kernels.word_sum = [](const WordSumOperands&) {
        TORCH_CHECK(false, "no kernel image is available\nfor this device");
      };
      return true;
    default:
      return false;
  }
}

class BrokenAttention final : public AttentionOp {
 public:
  explicit BrokenAttention(Fault fault) : fault_(fault) {}

  AttentionSaved Forward(const AttentionBatch& batch, const at::Tensor& q_HTE, const at::Tensor& k_TKE,
                         const at::Tensor& v_TKE) const override {
    return right_->Forward(batch, q_HTE, k_TKE, v_TKE);
  }
  AttentionGradients Backward(const AttentionBatch& batch, const at::Tensor& do_TD,
                              const AttentionSaved& saved) const override {
    AttentionGradients gradients = right_->Backward(batch, do_TD, saved);
    const at::Tensor before = at::full_like(gradients.dk_TKE, std::numeric_limits<double>::quiet_NaN());
    Spoil(fault_, gradients.dk_TKE, before, do_TD);
    return gradients;
  }

 private:
  const Fault fault_;
  const std::shared_ptr<const AttentionOp> right_ = MakeComposedAttention();
};

// Its results are its own: what is after them is nobody's.
bool BreakAttention(Fault fault, Backend& backend) {
  if (fault == Fault::kWritesPastEnd) return false;
  backend.attention = std::make_shared<BrokenAttention>(fault);
  return true;
}

struct NamedBreak {
  const char* kernel;
  bool (*make)(Fault fault, Backend& backend);
};

constexpr NamedBreak kBreaks[] = {{"rms_norm_forward", BreakKernel<&Kernels::rms_norm_forward>},
                                  {"rms_norm_backward", BreakKernel<&Kernels::rms_norm_backward>},
                                  {"swiglu_forward", BreakKernel<&Kernels::swiglu_forward>},
                                  {"swiglu_backward", BreakKernel<&Kernels::swiglu_backward>},
                                  {"qkv_forward", BreakKernel<&Kernels::qkv_forward>},
                                  {"qkv_backward", BreakKernel<&Kernels::qkv_backward>},
                                  {"embedding_backward", BreakKernel<&Kernels::embedding_backward>},
                                  {"head_forward", BreakKernel<&Kernels::head_forward>},
                                  {"head_backward", BreakKernel<&Kernels::head_backward>},
                                  {"loss", BreakKernel<&Kernels::loss>},
                                  {"add_weight_gradient", BreakKernel<&Kernels::add_weight_gradient>},
                                  {"logits", BreakKernel<&Kernels::logits>},
                                  {"logits_backward", BreakKernel<&Kernels::logits_backward>},
                                  {"vector_norm", BreakKernel<&Kernels::vector_norm>},
                                  {"first_nonfinite", BreakFirstNonfinite},
                                  {"word_sum", BreakWordSum},
                                  {"attention", BreakAttention}};

}  // namespace

bool Break(const std::string& kernel, Fault fault, Backend& backend) {
  for (const NamedBreak& one : kBreaks) {
    if (one.kernel == kernel) return one.make(fault, backend);
  }
  LOG(FATAL) << kernel << " cannot be broken";
}

}  // namespace stemma::testing
