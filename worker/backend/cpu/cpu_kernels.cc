#include "worker/backend/cpu/cpu_kernels.h"

#include "worker/backend/composed/composed_backend.h"
#include "worker/backend/cpu/finite.h"
#include "worker/backend/cpu/lm_head.h"
#include "worker/backend/cpu/rowwise.h"
#include "worker/backend/cpu/typed_data.h"

namespace stemma::worker {
namespace {

void RmsNormForward(const RmsNormForwardOperands& args) {
  DispatchRunType(args.x_TD.scalar_type(), [&]<typename T>() {
    kernels::RmsNormForward<T>({.x_TD = Data<T>(args.x_TD),
                                .weight_D = Data<T>(args.weight_D),
                                .y_TD = Data<T>(args.y_TD),
                                .rstd_T = Data<kernels::Acc<T>>(args.rstd_T),
                                .rows = args.x_TD.size(0),
                                .width = args.x_TD.size(1),
                                .eps = args.eps});
  });
}

void RmsNormBackward(const RmsNormBackwardOperands& args) {
  DispatchRunType(args.x_TD.scalar_type(), [&]<typename T>() {
    using A = kernels::Acc<T>;
    kernels::RmsNormBackward<T>({.dy_TD = Data<T>(args.dy_TD),
                                 .x_TD = Data<T>(args.x_TD),
                                 .rstd_T = Data<A>(args.rstd_T),
                                 .weight_D = Data<T>(args.weight_D),
                                 .residual_TD = Data<T>(args.residual_TD),
                                 .dx_TD = Data<T>(args.dx_TD),
                                 .dweight_D = Data<A>(args.dweight_D),
                                 .rows = args.x_TD.size(0),
                                 .width = args.x_TD.size(1)});
  });
}

void SwigluForward(const SwigluForwardOperands& args) {
  DispatchRunType(args.gate_up_TJ.scalar_type(), [&]<typename T>() {
    kernels::SwigluForward<T>({.gate_up_TJ = Data<T>(args.gate_up_TJ),
                               .y_TF = Data<T>(args.y_TF),
                               .rows = args.y_TF.size(0),
                               .width = args.y_TF.size(1)});
  });
}

void SwigluBackward(const SwigluBackwardOperands& args) {
  DispatchRunType(args.gate_up_TJ.scalar_type(), [&]<typename T>() {
    kernels::SwigluBackward<T>({.dy_TF = Data<T>(args.dy_TF),
                                .gate_up_TJ = Data<T>(args.gate_up_TJ),
                                .dgate_up_TJ = Data<T>(args.dgate_up_TJ),
                                .rows = args.dy_TF.size(0),
                                .width = args.dy_TF.size(1)});
  });
}

int64_t NumHeads(const at::Tensor& x_HTE) { return x_HTE.defined() ? x_HTE.size(0) : 0; }

void QkvForward(const QkvForwardOperands& args) {
  DispatchRunType(args.qkv_TJ.scalar_type(), [&]<typename T>() {
    using A = kernels::Acc<T>;
    kernels::QkvForward<T>({.qkv_TJ = Data<T>(args.qkv_TJ),
                            .positions_T = args.positions_T.const_data_ptr<int64_t>(),
                            .cos_PE = Data<A>(args.cos_PE),
                            .sin_PE = Data<A>(args.sin_PE),
                            .q_weight_E = Data<T>(args.q_weight_E),
                            .k_weight_E = Data<T>(args.k_weight_E),
                            .eps = args.eps,
                            .q_HTE = Data<T>(args.q_HTE),
                            .k_TKE = Data<T>(args.k_TKE),
                            .v_TKE = Data<T>(args.v_TKE),
                            .rstd_TJ = Data<A>(args.rstd_TJ),
                            .rows = args.qkv_TJ.size(0),
                            .num_heads = NumHeads(args.q_HTE),
                            .num_kv_heads = args.k_TKE.size(1),
                            .head_size = args.k_TKE.size(2)});
  });
}

template <typename T>
kernels::StridedHeads<const T> StridedHeadsOf(const at::Tensor& x_HTE) {
  if (!x_HTE.defined()) return {};
  CHECK_EQ(x_HTE.dim(), 3);
  CHECK(x_HTE.stride(2) == 1 || x_HTE.size(2) <= 1) << "the last dim must be contiguous";
  return {StridedData<T>(x_HTE), x_HTE.stride(0), x_HTE.stride(1)};
}

template <typename T, typename G>
void RunQkvBackward(const QkvBackwardOperands& args) {
  using A = kernels::Acc<T>;
  kernels::QkvBackward<T, G>({.dq_HTE = StridedHeadsOf<T>(args.dq_HTE),
                              .dk_TKE = StridedHeadsOf<G>(HeadMajor(args.dk_TKE)),
                              .dv_TKE = StridedHeadsOf<G>(HeadMajor(args.dv_TKE)),
                              .positions_T = args.positions_T.const_data_ptr<int64_t>(),
                              .cos_PE = Data<A>(args.cos_PE),
                              .sin_PE = Data<A>(args.sin_PE),
                              .q_weight_E = Data<T>(args.q_weight_E),
                              .k_weight_E = Data<T>(args.k_weight_E),
                              .qkv_TJ = Data<T>(args.qkv_TJ),
                              .rstd_TJ = Data<A>(args.rstd_TJ),
                              .dq_weight_E = Data<A>(args.dq_weight_E),
                              .dk_weight_E = Data<A>(args.dk_weight_E),
                              .dqkv_TJ = Data<T>(args.dqkv_TJ),
                              .rows = args.dk_TKE.size(0),
                              .num_heads = NumHeads(args.dq_HTE),
                              .num_kv_heads = args.dk_TKE.size(1),
                              .head_size = args.dk_TKE.size(2)});
}

void QkvBackward(const QkvBackwardOperands& args) {
  const at::ScalarType run_dtype = args.dqkv_TJ.scalar_type();
  DispatchRunType(run_dtype, [&]<typename T>() {
    args.dk_TKE.scalar_type() == run_dtype ? RunQkvBackward<T, T>(args) : RunQkvBackward<T, kernels::Acc<T>>(args);
  });
}

void EmbeddingBackward(const EmbeddingBackwardOperands& args) {
  DispatchRunType(args.dx_TD.scalar_type(), [&]<typename T>() {
    kernels::EmbeddingBackward<T>({.tokens_T = args.tokens_T.const_data_ptr<int64_t>(),
                                   .dx_TD = Data<T>(args.dx_TD),
                                   .dweight_VD = Data<kernels::Acc<T>>(args.dweight_VD),
                                   .rows = args.dx_TD.size(0),
                                   .width = args.dx_TD.size(1)});
  });
}

// Calls f.template operator()<T>() with the arithmetic's type of logits.
template <typename F>
void DispatchLogits(const at::Tensor& logits_TV, const F& f) {
  logits_TV.scalar_type() == at::kDouble ? f.template operator()<double>() : f.template operator()<float>();
}

kernels::HeadRowSoftmax* SoftmaxData(const at::Tensor& softmax_T2) {
  static_assert(sizeof(kernels::HeadRowSoftmax) == 2 * sizeof(double));
  return reinterpret_cast<kernels::HeadRowSoftmax*>(Data<double>(softmax_T2));
}

void HeadForward(const HeadForwardOperands& args) {
  DispatchLogits(args.logits_TV, [&]<typename T>() {
    kernels::HeadForward<T>({.logits_TV = Data<T>(args.logits_TV),
                             .targets_T = args.targets_T.const_data_ptr<int64_t>(),
                             .softmax_T = SoftmaxData(args.softmax_T2),
                             .log_prob_T = Data<double>(args.log_prob_T),
                             .entropy_T = Data<double>(args.entropy_T),
                             .rows = args.logits_TV.size(0),
                             .vocab = args.logits_TV.size(1),
                             .inverse_temperature = args.inverse_temperature});
  });
}

void HeadBackward(const HeadBackwardOperands& args) {
  CHECK(args.dlogits_TV.is_same(args.logits_TV)) << "gradients replace the logits";
  DispatchLogits(args.logits_TV, [&]<typename T>() {
    kernels::HeadBackward<T>({.logits_TV = Data<T>(args.logits_TV),
                              .targets_T = args.targets_T.const_data_ptr<int64_t>(),
                              .softmax_T = SoftmaxData(args.softmax_T2),
                              .dlog_prob_T = Data<double>(args.dlog_prob_T),
                              .entropy_T = Data<double>(args.entropy_T),
                              .dentropy_T = Data<double>(args.dentropy_T),
                              .rows = args.logits_TV.size(0),
                              .vocab = args.logits_TV.size(1),
                              .inverse_temperature = args.inverse_temperature});
  });
}

void FirstNonfinite(const FirstNonfiniteOperands& args) { args.index.fill_(kernels::FirstNonfinite(args.values)); }

}  // namespace

Kernels CpuKernels() {
  return {.rms_norm_forward = RmsNormForward,
          .rms_norm_backward = RmsNormBackward,
          .swiglu_forward = SwigluForward,
          .swiglu_backward = SwigluBackward,
          .qkv_forward = QkvForward,
          .qkv_backward = QkvBackward,
          .embedding_backward = EmbeddingBackward,
          .head_forward = HeadForward,
          .head_backward = HeadBackward,
          .loss = CpuLoss,
          .add_weight_gradient = CpuAddWeightGradient,
          .logits = CpuLogits,
          .logits_backward = CpuLogitsBackward,
          .vector_norm = ComposedKernels().vector_norm,
          .first_nonfinite = FirstNonfinite,
          .word_sum = ComposedKernels().word_sum};
}

}  // namespace stemma::worker
