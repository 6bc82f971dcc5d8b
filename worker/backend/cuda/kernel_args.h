// From the operands of the kernel table to the arguments of the kernels. Private to worker/backend/cuda; tests take it
// to run the kernels' bodies on the host.
//
// Checks dtypes, strides and sizes: what comes out can be launched. Fused kernels have runs in bf16 and fp32 only.
#pragma once

#include <cstddef>

#include "worker/backend/cuda/attention/attention_kernels.h"
#include "worker/backend/cuda/kernels/embedding.h"
#include "worker/backend/cuda/kernels/head.h"
#include "worker/backend/cuda/kernels/loss.h"
#include "worker/backend/cuda/kernels/merge.h"
#include "worker/backend/cuda/kernels/norm.h"
#include "worker/backend/cuda/kernels/qkv.h"
#include "worker/backend/cuda/kernels/swiglu.h"
#include "worker/backend/cuda/kernels/word_sum.h"
#include "worker/backend/cuda/typed_data.h"
#include "worker/backend/kernels.h"

namespace stemma::worker::cuda {

inline int64_t NumHeads(const at::Tensor& x_HTE) { return x_HTE.defined() ? x_HTE.size(0) : 0; }

inline LseRows LseRowsOf(const at::Tensor& lse_HT) {
  CHECK_EQ(lse_HT.dim(), 2);
  return {StridedData<float>(lse_HT), lse_HT.stride(0), lse_HT.stride(1)};
}

template <typename T>
RmsNormForwardArgs<T> ArgsOf(const RmsNormForwardOperands& args) {
  return {.x_TD = Data<const T>(args.x_TD),
          .weight_D = Data<const T>(args.weight_D),
          .y_TD = Data<T>(args.y_TD),
          .rstd_T = Data<float>(args.rstd_T),
          .rows = args.x_TD.size(0),
          .width = args.x_TD.size(1),
          .eps = static_cast<float>(args.eps)};
}

template <typename T>
RmsNormBackwardArgs<T> ArgsOf(const RmsNormBackwardOperands& args, const at::Tensor& partials) {
  return {.dy_TD = Data<const T>(args.dy_TD),
          .x_TD = Data<const T>(args.x_TD),
          .rstd_T = Data<const float>(args.rstd_T),
          .weight_D = Data<const T>(args.weight_D),
          .residual_TD = Data<const T>(args.residual_TD),
          .dx_TD = Data<T>(args.dx_TD),
          .partials = Data<float>(partials),
          .rows = args.x_TD.size(0),
          .width = args.x_TD.size(1)};
}

template <typename T>
SwigluForwardArgs<T> ArgsOf(const SwigluForwardOperands& args) {
  return {.gate_up_TJ = Data<const T>(args.gate_up_TJ),
          .y_TF = Data<T>(args.y_TF),
          .rows = args.y_TF.size(0),
          .width = args.y_TF.size(1)};
}

template <typename T>
SwigluBackwardArgs<T> ArgsOf(const SwigluBackwardOperands& args) {
  return {.dy_TF = Data<const T>(args.dy_TF),
          .gate_up_TJ = Data<const T>(args.gate_up_TJ),
          .dgate_up_TJ = Data<T>(args.dgate_up_TJ),
          .rows = args.dy_TF.size(0),
          .width = args.dy_TF.size(1)};
}

template <typename T>
QkvForwardArgs<T> ArgsOf(const QkvForwardOperands& args) {
  CHECK_EQ(args.k_TKE.size(2) % 2, 0);
  return {.qkv_TJ = Data<const T>(args.qkv_TJ),
          .positions_T = Data<const int64_t>(args.positions_T),
          .cos_PE = Data<const float>(args.cos_PE),
          .sin_PE = Data<const float>(args.sin_PE),
          .q_weight_E = Data<const T>(args.q_weight_E),
          .k_weight_E = Data<const T>(args.k_weight_E),
          .eps = static_cast<float>(args.eps),
          .q_HTE = HeadMajorRows<T>(args.q_HTE),
          .k_TKE = TokenMajorRows<T>(args.k_TKE),
          .v_TKE = TokenMajorRows<T>(args.v_TKE),
          .rstd_TJ = Data<float>(args.rstd_TJ),
          .rows = args.qkv_TJ.size(0),
          .num_heads = NumHeads(args.q_HTE),
          .num_kv_heads = args.k_TKE.size(1),
          .head_size = args.k_TKE.size(2)};
}

template <typename T, typename G>
QkvBackwardArgs<T, G> ArgsOf(const QkvBackwardOperands& args) {
  CHECK_EQ(args.dk_TKE.size(2) % 2, 0);
  const bool norm = args.k_weight_E.defined();
  return {.dq_HTE = HeadMajorRows<const T>(args.dq_HTE),
          .dk_TKE = TokenMajorRows<const G>(args.dk_TKE),
          .dv_TKE = TokenMajorRows<const G>(args.dv_TKE),
          .positions_T = Data<const int64_t>(args.positions_T),
          .cos_PE = Data<const float>(args.cos_PE),
          .sin_PE = Data<const float>(args.sin_PE),
          .q_weight_E = Data<const T>(args.q_weight_E),
          .k_weight_E = Data<const T>(args.k_weight_E),
          .qkv_TJ = norm ? Data<const T>(args.qkv_TJ) : nullptr,
          .rstd_TJ = norm ? Data<const float>(args.rstd_TJ) : nullptr,
          .dqkv_TJ = Data<T>(args.dqkv_TJ),
          .rows = args.dk_TKE.size(0),
          .num_heads = NumHeads(args.dq_HTE),
          .num_kv_heads = args.dk_TKE.size(1),
          .head_size = args.dk_TKE.size(2)};
}

// Takes the tokens sorted, as int32, and the row that each stood in.
template <typename T>
EmbeddingBackwardArgs<T> ArgsOf(const EmbeddingBackwardOperands& args, const at::Tensor& sorted_T,
                                const at::Tensor& rows_T) {
  return {.sorted_tokens_T = Data<const int32_t>(sorted_T),
          .rows_T = Data<const int64_t>(rows_T),
          .dx_TD = Data<const T>(args.dx_TD),
          .dweight_VD = Data<float>(args.dweight_VD),
          .rows = args.dx_TD.size(0),
          .width = args.dx_TD.size(1)};
}

template <typename T>
MergeArgs<T> ArgsOf(const MergeOperands& args) {
  return {.a_THE = TokenMajorRows<const T>(args.a_THE),
          .b_THE = TokenMajorRows<const T>(args.b_THE),
          .lse_a_HT = LseRowsOf(args.lse_a_HT),
          .lse_b_HT = LseRowsOf(args.lse_b_HT),
          .o_THE = TokenMajorRows<T>(args.o_THE),
          .lse_HT = LseRowsOf(args.lse_HT),
          .rows = args.o_THE.size(0),
          .num_heads = args.o_THE.size(1),
          .head_size = args.o_THE.size(2)};
}

template <typename T>
AddPartsArgs<T> ArgsOf(const AddPartsOperands& args) {
  CHECK_EQ(args.parts_NCKE.dim(), 4);
  return {.parts_CKE = TokenMajorRows<const T>(args.parts_NCKE.select(0, 0)),
          .part_stride = args.parts_NCKE.stride(0),
          .num_parts = args.parts_NCKE.size(0),
          .sum_CKE = TokenMajorRows<float>(args.sum_CKE),
          .rows = args.sum_CKE.size(0),
          .num_heads = args.sum_CKE.size(1),
          .head_size = args.sum_CKE.size(2)};
}

// Elements from row to row, of rows whose elements lie together.
inline int64_t RowStride(const at::Tensor& x_TV) {
  CHECK_EQ(x_TV.dim(), 2);
  CHECK(x_TV.size(1) <= 1 || x_TV.stride(1) == 1) << "contiguous rows are needed";
  CHECK(x_TV.size(0) <= 1 || x_TV.stride(0) >= x_TV.size(1)) << "rows overlap";
  return x_TV.stride(0);
}

inline HeadForwardArgs ArgsOf(const HeadForwardOperands& args) {
  return {.logits_TV = StridedData<const float>(args.logits_TV),
          .targets_T = Data<const int64_t>(args.targets_T),
          .softmax_T2 = Data<double>(args.softmax_T2),
          .log_prob_T = Data<double>(args.log_prob_T),
          .entropy_T = Data<double>(args.entropy_T),
          .rows = args.logits_TV.size(0),
          .vocab = args.logits_TV.size(1),
          .row_stride = RowStride(args.logits_TV),
          .inverse_temperature = args.inverse_temperature};
}

// Whether dlogits are bf16 in the memory of the logits; else they replace them.
inline bool DlogitsAreBf16(const HeadBackwardOperands& args) { return args.dlogits_TV.scalar_type() == at::kBFloat16; }

inline HeadBackwardArgs ArgsOf(const HeadBackwardOperands& args) {
  const at::Tensor &logits = args.logits_TV, &dlogits = args.dlogits_TV;
  CHECK(DlogitsAreBf16(args) || dlogits.scalar_type() == at::kFloat);
  CHECK_EQ(dlogits.data_ptr(), logits.data_ptr()) << "gradients lie in the memory of the logits";
  CHECK(dlogits.sizes() == logits.sizes());
  CHECK(dlogits.size(0) <= 1 || RowStride(dlogits) == RowStride(logits) * (DlogitsAreBf16(args) ? 2 : 1));
  return {.logits_TV = StridedData<float>(args.logits_TV),
          .targets_T = Data<const int64_t>(args.targets_T),
          .softmax_T2 = Data<const double>(args.softmax_T2),
          .dlog_prob_T = Data<const double>(args.dlog_prob_T),
          .entropy_T = Data<const double>(args.entropy_T),
          .dentropy_T = Data<const double>(args.dentropy_T),
          .rows = args.logits_TV.size(0),
          .vocab = args.logits_TV.size(1),
          .row_stride = RowStride(args.logits_TV),
          .inverse_temperature = args.inverse_temperature};
}

template <typename T>
WordSumArgs<T> ArgsOf(const WordSumOperands& args, const at::Tensor& partials) {
  return {.words = Data<const T>(args.values),
          .count = args.values.numel(),
          .first = args.first,
          .columns = args.columns,
          .row_begin = static_cast<uint64_t>(args.row_begin),
          .column_begin = static_cast<uint64_t>(args.column_begin),
          .partials = Data<int64_t>(partials)};
}

// `sequence_log_ratio_T`: gspo's mean of each row's rollout; undefined in other modes.
inline LossArgs ArgsOf(const LossOperands& args, const at::Tensor& sequence_log_ratio_T, const at::Tensor& partials) {
  const LossRows& rows = args.rows;
  return {.options = LossRowOptionsOf(args.options),
          .rows = {.old_log_prob =
                       Data<const double>(rows.old_log_prob_T.defined() ? rows.old_log_prob_T : args.log_prob_T),
                   .ref_log_prob = Data<const double>(rows.ref_log_prob_T),
                   .advantage = Data<const double>(rows.advantage_T),
                   .importance_weight = Data<const double>(rows.importance_weight_T),
                   .loss_weight = Data<const double>(rows.loss_weight_T),
                   .weight = Data<const double>(rows.weight_T),
                   .mask = Data<const double>(rows.mask_T),
                   .log_prob = Data<const double>(args.log_prob_T),
                   .entropy = Data<const double>(args.entropy_T),
                   .dlog_prob = Data<double>(args.dlog_prob_T),
                   .dentropy = Data<double>(args.dentropy_T),
                   .count = args.log_prob_T.numel()},
          .sequence_log_ratio_T = Data<const double>(sequence_log_ratio_T),
          .partials = Data<double>(partials)};
}

// Takes the arguments of the loss that reads the means.
inline SequenceLogRatiosArgs SequenceLogRatiosArgsOf(const LossArgs& args, const at::Tensor& rollout_T,
                                                     const at::Tensor& ratio_T) {
  return {.log_prob_T = args.rows.log_prob,
          .old_log_prob_T = args.rows.old_log_prob,
          .mask_T = args.rows.mask,
          .rollout_T = Data<const int64_t>(rollout_T),
          .ratio_T = Data<double>(ratio_T),
          .rows = args.rows.count};
}

// A loss adds its sums where LossOperands::sums has them.
static_assert(kNumLossRowSums == kNumLossSums && offsetof(LossRowSums, kl) == kSumKl * sizeof(double) &&
              offsetof(LossRowSums, plain_entropy) == kSumPlainEntropy * sizeof(double));

}  // namespace stemma::worker::cuda
