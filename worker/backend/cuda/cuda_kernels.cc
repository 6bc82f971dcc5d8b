#include "worker/backend/cuda/cuda_kernels.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/sort.h>

#include "worker/backend/composed/composed_backend.h"
#include "worker/backend/cuda/attention/composed_attention_kernels.h"
#include "worker/backend/cuda/kernel_args.h"
#include "worker/backend/cuda/kernels/launch.h"
#include "worker/backend/cuda/launching.h"

namespace stemma::worker::cuda {
namespace {

bool IsDouble(const at::Tensor& x) { return x.scalar_type() == at::kDouble; }

void RmsNormForward(const RmsNormForwardOperands& args) {
  if (IsDouble(args.x_TD)) return ComposedKernels().rms_norm_forward(args);
  const Launching launching(args.x_TD);
  DispatchRunType(args.x_TD.scalar_type(), [&]<typename T>() {
    CheckLaunch(LaunchRmsNormForward(ArgsOf<T>(args), launching.stream()), "rms_norm_forward");
  });
}

void RmsNormBackward(const RmsNormBackwardOperands& args) {
  if (IsDouble(args.x_TD)) return ComposedKernels().rms_norm_backward(args);
  const Launching launching(args.x_TD);
  const at::Tensor partials =
      at::empty({RmsNormBackwardTeams(args.x_TD.size(0)), args.x_TD.size(1)}, args.dweight_D.options());
  DispatchRunType(args.x_TD.scalar_type(), [&]<typename T>() {
    CheckLaunch(LaunchRmsNormBackward(ArgsOf<T>(args, partials), Data<float>(args.dweight_D), launching.stream()),
                "rms_norm_backward");
  });
}

void SwigluForward(const SwigluForwardOperands& args) {
  if (IsDouble(args.y_TF)) return ComposedKernels().swiglu_forward(args);
  const Launching launching(args.y_TF);
  DispatchRunType(args.y_TF.scalar_type(), [&]<typename T>() {
    CheckLaunch(LaunchSwigluForward(ArgsOf<T>(args), launching.stream()), "swiglu_forward");
  });
}

void SwigluBackward(const SwigluBackwardOperands& args) {
  if (IsDouble(args.dy_TF)) return ComposedKernels().swiglu_backward(args);
  const Launching launching(args.dy_TF);
  DispatchRunType(args.dy_TF.scalar_type(), [&]<typename T>() {
    CheckLaunch(LaunchSwigluBackward(ArgsOf<T>(args), launching.stream()), "swiglu_backward");
  });
}

void QkvForward(const QkvForwardOperands& args) {
  if (IsDouble(args.qkv_TJ)) return ComposedKernels().qkv_forward(args);
  const Launching launching(args.qkv_TJ);
  DispatchRunType(args.qkv_TJ.scalar_type(), [&]<typename T>() {
    CheckLaunch(LaunchQkvForward(ArgsOf<T>(args), launching.stream()), "qkv_forward");
  });
}

template <typename T, typename G>
void RunQkvBackward(const QkvBackwardOperands& args) {
  const Launching launching(args.dqkv_TJ);
  const QkvBackwardArgs<T, G> raw = ArgsOf<T, G>(args);
  at::Tensor partials;
  QkvWeightSums sums{};
  if (raw.k_weight_E != nullptr) {
    partials = at::empty({QkvBackwardBlocks(raw.rows), 2 * raw.head_size}, args.dk_weight_E.options());
    sums = {.partials = Data<float>(partials),
            .dq_weight_E = raw.num_heads > 0 ? Data<float>(args.dq_weight_E) : nullptr,
            .dk_weight_E = Data<float>(args.dk_weight_E)};
  }
  CheckLaunch(LaunchQkvBackward(raw, sums, launching.stream()), "qkv_backward");
}

void QkvBackward(const QkvBackwardOperands& args) {
  const at::ScalarType dtype = args.dqkv_TJ.scalar_type();
  const int64_t size = args.dk_TKE.size(2);
  if (dtype == at::kDouble || (args.k_weight_E.defined() && size > kMaxNormedHeadSize)) {
    return ComposedKernels().qkv_backward(args);
  }
  if (dtype == at::kFloat) {
    RunQkvBackward<float, float>(args);
  } else if (args.dk_TKE.scalar_type() == dtype) {
    RunQkvBackward<Bf16, Bf16>(args);
  } else {
    RunQkvBackward<Bf16, float>(args);
  }
}

void EmbeddingBackward(const EmbeddingBackwardOperands& args) {
  if (IsDouble(args.dx_TD)) return ComposedKernels().embedding_backward(args);
  if (args.dx_TD.size(0) == 0) return;
  const Launching launching(args.dx_TD);
  const auto [sorted, rows] = at::sort(args.tokens_T.to(at::kInt), /*stable=*/true, /*dim=*/0, /*descending=*/false);
  DispatchRunType(args.dx_TD.scalar_type(), [&]<typename T>() {
    CheckLaunch(LaunchEmbeddingBackward(ArgsOf<T>(args, sorted, rows), launching.stream()), "embedding_backward");
  });
}

void VectorNorm(const VectorNormOperands& args) {
  if (IsDouble(args.values)) return ComposedKernels().vector_norm(args);
  const Launching launching(args.values);
  const at::Tensor partials = at::empty({VectorNormTeams(args.values.numel())}, args.norm.options());
  DispatchRunType(args.values.scalar_type(), [&]<typename T>() {
    const VectorNormArgs<T> raw{
        .values = Data<const T>(args.values), .count = args.values.numel(), .partials = Data<double>(partials)};
    CheckLaunch(LaunchVectorNorm(raw, Data<double>(args.norm), launching.stream()), "vector_norm");
  });
}

void FirstNonfinite(const FirstNonfiniteOperands& args) {
  const at::Tensor& values = args.values;
  if (IsDouble(values)) return ComposedKernels().first_nonfinite(args);
  if (values.numel() == 0) {
    args.index.fill_(-1);
    return;
  }
  const Launching launching(values);
  const at::Tensor partials = at::empty({FirstNonfiniteTeams(values.numel())}, args.index.options());
  DispatchRunType(values.scalar_type(), [&]<typename T>() {
    const FirstNonfiniteArgs<T> raw{
        .values = Data<const T>(values), .count = values.numel(), .partials = Data<int64_t>(partials)};
    CheckLaunch(LaunchFirstNonfinite(raw, Data<int64_t>(args.index), launching.stream()), "first_nonfinite");
  });
}

void WordSum(const WordSumOperands& args) {
  if (IsDouble(args.values)) return ComposedKernels().word_sum(args);
  const Launching launching(args.values);
  const at::Tensor partials = at::empty({WordSumTeams(args.values.numel())}, args.sum.options());
  DispatchRunType(args.values.scalar_type(), [&]<typename T>() {
    CheckLaunch(LaunchWordSum(ArgsOf<T>(args, partials), Data<int64_t>(args.sum), launching.stream()), "word_sum");
  });
}

void MergeParts(const MergeOperands& args) {
  if (IsDouble(args.o_THE)) return ComposedAttentionKernels().merge(args);
  const Launching launching(args.o_THE);
  DispatchRunType(args.o_THE.scalar_type(), [&]<typename T>() {
    CheckLaunch(LaunchMerge(ArgsOf<T>(args), launching.stream()), "attention_merge");
  });
}

void AddPartsOfGradient(const AddPartsOperands& args) {
  if (IsDouble(args.sum_CKE)) return ComposedAttentionKernels().add_parts(args);
  if (args.parts_NCKE.size(0) == 0) return;
  const Launching launching(args.sum_CKE);
  DispatchRunType(args.parts_NCKE.scalar_type(), [&]<typename T>() {
    CheckLaunch(LaunchAddParts(ArgsOf<T>(args), launching.stream()), "attention_add_parts");
  });
}

}  // namespace

Kernels CudaRowKernels() {
  const Kernels composed = ComposedKernels();
  return {.rms_norm_forward = RmsNormForward,
          .rms_norm_backward = RmsNormBackward,
          .swiglu_forward = SwigluForward,
          .swiglu_backward = SwigluBackward,
          .qkv_forward = QkvForward,
          .qkv_backward = QkvBackward,
          .embedding_backward = EmbeddingBackward,
          .head_forward = CudaHeadForward,
          .head_backward = CudaHeadBackward,
          .loss = CudaLoss,
          .add_weight_gradient = composed.add_weight_gradient,
          .logits = composed.logits,
          .logits_backward = composed.logits_backward,
          .vector_norm = VectorNorm,
          .first_nonfinite = FirstNonfinite,
          .word_sum = WordSum};
}

AttentionKernels CudaAttentionKernels() { return {.merge = MergeParts, .add_parts = AddPartsOfGradient}; }

}  // namespace stemma::worker::cuda
