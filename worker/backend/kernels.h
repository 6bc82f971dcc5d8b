// The table of fused kernels that a backend fills: tensors in, tensors out. An entry owns its loop or its launch.
//
// Called by worker/ops, worker/loss and worker/optim, which check shapes and allocate outputs. All tensors of a call
// are on the backend's device and contiguous unless said otherwise; undefined ones are absent. An entry neither
// allocates what outlives it nor waits for the device, except where it says so. Letters: T rows, D model width, F ffn,
// H query heads, K kv heads, E head size, J joined columns of a fused product, V vocabulary, P positions. "Acc": the
// accumulate dtype (accumulate_type.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "common/trace/loss_names.h"

namespace stemma::worker {

// y = x · rstd · weight, rstd = (mean(x²) + eps)^-1/2.
struct RmsNormForwardOperands {
  const at::Tensor &x_TD, &weight_D;
  const at::Tensor& y_TD;    // written
  const at::Tensor& rstd_T;  // written; Acc
  double eps;
};

struct RmsNormBackwardOperands {
  const at::Tensor &dy_TD, &x_TD, &rstd_T, &weight_D;
  const at::Tensor& residual_TD;  // added to dx; may be undefined
  const at::Tensor& dx_TD;        // written
  const at::Tensor& dweight_D;    // added to; Acc
};

// y = silu(gate) · up of gate_up = [gate; up] columns.
struct SwigluForwardOperands {
  const at::Tensor& gate_up_TJ;  // J = 2F
  const at::Tensor& y_TF;        // written
};

struct SwigluBackwardOperands {
  const at::Tensor &dy_TF, &gate_up_TJ;
  const at::Tensor& dgate_up_TJ;  // written
};

// Splits a fused product into heads, normalises q and k where the family does, and rotates them.
struct QkvForwardOperands {
  const at::Tensor& qkv_TJ;                   // J = (H + 2K) E: columns q, k, v
  const at::Tensor& positions_T;              // int64
  const at::Tensor &cos_PE, &sin_PE;          // [P, E/2]; Acc
  const at::Tensor &q_weight_E, &k_weight_E;  // QK-norm; undefined: none
  double eps;
  // Written. q: as Backend::queries_by_token has it; undefined: the product holds k and v columns only.
  const at::Tensor &q_HTE, &k_TKE, &v_TKE;
  const at::Tensor& rstd_TJ;  // written with QK-norm: [T, H + K]; Acc
};

struct QkvBackwardOperands {
  const at::Tensor &dq_HTE, &dk_TKE, &dv_TKE;  // any strides, last dim contiguous; dk, dv: run dtype or Acc
  const at::Tensor& positions_T;
  const at::Tensor &cos_PE, &sin_PE;
  const at::Tensor &q_weight_E, &k_weight_E;  // QK-norm; undefined: none, and the next four are not read
  const at::Tensor &qkv_TJ, &rstd_TJ;
  const at::Tensor &dq_weight_E, &dk_weight_E;  // added to; Acc
  const at::Tensor& dqkv_TJ;                    // written; run dtype
};

// dweight[token] += dx, in row order wherever a token repeats. A token of -1 is none of these V: its row is left out.
struct EmbeddingBackwardOperands {
  const at::Tensor& tokens_T;  // int64
  const at::Tensor& dx_TD;
  const at::Tensor& dweight_VD;  // Acc
};

// u = z · inverse_temperature, p = softmax(u), y the target, H = -Σ p log p:
//   log_prob = log p_y,   softmax = (max z, log Σ e^(u - max u))
// A target of -1 is none of these V tokens: its u counts as 0 in log p_y, and it is no v in the backward.
struct HeadForwardOperands {
  const at::Tensor& logits_TV;   // Acc
  const at::Tensor& targets_T;   // int64
  const at::Tensor& softmax_T2;  // written; fp64
  const at::Tensor& log_prob_T;  // written; fp64
  const at::Tensor& entropy_T;   // written where defined; fp64
  double inverse_temperature;
};

// dL/dz = inverse_temperature · (g (1[v=y] - p_v) - h p_v (log p_v + H)). A row with g = h = 0 gives zeros whatever its
// logits are. dlogits is either logits itself, or of the run dtype and in the same memory: row t begins where the
// logits' row t does. Both have contiguous columns.
struct HeadBackwardOperands {
  const at::Tensor& logits_TV;   // Acc; undefined afterwards, but for dlogits
  const at::Tensor& dlogits_TV;  // written; Acc, or run dtype
  const at::Tensor &targets_T, &softmax_T2;
  const at::Tensor& dlog_prob_T;             // g; fp64
  const at::Tensor &entropy_T, &dentropy_T;  // H and h; undefined: no gradient of the entropy
  double inverse_temperature;
};

struct LossOptions {
  LossMode mode = LossMode::kVanilla;
  double clip_low = 0, clip_high = 0;
  std::optional<double> clip_c = std::nullopt;  // dual clip
  double kl_coef = 0;
  KlType kl_type = KlType::kNone;
  bool kl_straight_through = false;  // the `+` types: value as named, gradient -x
  double entropy_coeff = 0;
};

// What a loss reads of each row beside its log-prob: fp64 [T], those that the mode does not read undefined.
struct LossRows {
  at::Tensor old_log_prob_T;  // undefined: on policy, the log-probs themselves, through which no gradient flows
  at::Tensor ref_log_prob_T;
  at::Tensor advantage_T;
  at::Tensor importance_weight_T;  // rollout_is_weights
  at::Tensor loss_weight_T;        // cross_entropy
  at::Tensor weight_T;             // mask · w / D of the aggregation; 0 where masked
  at::Tensor mask_T;               // 1, or 0: a row that contributes nothing, whatever its numbers are
  at::Tensor rollout_T;            // int64: of the wave, ascending from any number; read by modes of whole rollouts
};

// The sums of a loss over its unmasked rows, in the order of LossOperands::sums. pg (times the importance weight), kl
// and entropy are weighted but without their coefficients; the rest are plain.
enum LossSum {
  kSumPg,
  kSumKl,
  kSumEntropy,
  kSumClipped,
  kSumClippedLower,
  kSumNegLogRatio,
  kSumTokens,
  kSumPlainEntropy
};
inline constexpr int64_t kNumLossSums = 8;

// The loss of rows (docs/losses.md):  sum of  weight · (W · pg + kl_coef · kl - entropy_coeff · H).
struct LossOperands {
  const LossOptions& options;
  const LossRows& rows;
  const at::Tensor& log_prob_T;
  const at::Tensor& entropy_T;    // may be undefined: its sums stay as they are
  const at::Tensor& dlog_prob_T;  // written
  const at::Tensor& dentropy_T;   // written where defined
  const at::Tensor& sums;         // [kNumLossSums] fp64, added to
};

// The products whose operands are in the run dtype and whose sums are in Acc. Where both are one dtype they are plain.
struct WeightGradientOperands {  // dweight += dyᵀ x; rows of dy may lie apart
  const at::Tensor &dy_TO, &x_TI;
  const at::Tensor& dweight_OI;  // Acc
};
struct LogitsOperands {  // logits = hidden weightᵀ
  const at::Tensor &hidden_TD, &weight_VD;
  const at::Tensor& logits_TV;  // written; Acc
};
struct LogitsBackwardOperands {  // dhidden = dlogits weight, summed in Acc
  const at::Tensor& dlogits_TV;  // as the head's backward wrote them
  const at::Tensor& weight_VD;
  const at::Tensor& dhidden_TD;  // written; run dtype
};

// The 2-norm of an array, for the norm of all gradients: (Σ x²)^½, squares and their sum in fp64.
struct VectorNormOperands {
  const at::Tensor& values;  // contiguous, one dim, not empty
  const at::Tensor& norm;    // [], fp64, written
};

// The first element of an array that is not finite.
struct FirstNonfiniteOperands {
  const at::Tensor& values;  // contiguous
  const at::Tensor& index;   // [], int64, written: counted from 0; -1: all are finite
};

// What a part of a matrix adds to the digest of weights (worker/model/weights_digest.h): Σ word · RowFactor ·
// ColumnFactor (worker/backend/word_factors.h), modulo 2^64.
struct WordSumOperands {
  const at::Tensor& values;  // contiguous, one dim, not empty; elements of 2, 4 or 8 bytes are unsigned words
  int64_t first = 0;         // of values[0] among the matrix's elements, row by row
  int64_t columns = 1;
  int64_t row_begin = 0, column_begin = 0;  // from which the matrix's rows and columns are counted
  const at::Tensor& sum;                    // [], int64, written
};

struct Kernels {
  void (*rms_norm_forward)(const RmsNormForwardOperands&);
  void (*rms_norm_backward)(const RmsNormBackwardOperands&);
  void (*swiglu_forward)(const SwigluForwardOperands&);
  void (*swiglu_backward)(const SwigluBackwardOperands&);
  void (*qkv_forward)(const QkvForwardOperands&);
  void (*qkv_backward)(const QkvBackwardOperands&);
  void (*embedding_backward)(const EmbeddingBackwardOperands&);
  void (*head_forward)(const HeadForwardOperands&);
  void (*head_backward)(const HeadBackwardOperands&);
  void (*loss)(const LossOperands&);
  void (*add_weight_gradient)(const WeightGradientOperands&);
  void (*logits)(const LogitsOperands&);
  void (*logits_backward)(const LogitsBackwardOperands&);
  void (*vector_norm)(const VectorNormOperands&);
  void (*first_nonfinite)(const FirstNonfiniteOperands&);
  void (*word_sum)(const WordSumOperands&);
};

}  // namespace stemma::worker
