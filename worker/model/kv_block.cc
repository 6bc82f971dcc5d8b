#include "worker/model/kv_block.h"

#include "worker/ops/linear.h"
#include "worker/ops/norm.h"

namespace stemma::worker {
namespace {

QkvShape KvShapeOf(const ModelConfig& config) { return {0, config.num_kv_heads, config.head_size}; }

// The K and V rows of a fused [q; k; v] tensor.
at::Tensor KvRows(const at::Tensor& qkv, const ModelConfig& config) {
  return qkv.defined() ? qkv.slice(0, config.q_size()) : qkv;
}

}  // namespace

std::vector<TapeEntry> KvTape::Entries() {
  return {{TapeTensor::kInput, &x_TD},
          {TapeTensor::kKvStatistic, &rstd_T},
          {TapeTensor::kNormed, &h_TD},
          {TapeTensor::kBeforeQkNorm, &kv_TJ},
          {TapeTensor::kBeforeQkNorm, &rstd_k_TJ}};
}

KvBlock::KvBlock(const LayerContext& context, int64_t layer, const at::Tensor& positions_T)
    : context_(context), config_(context.weights->config), p_(*context.weights, layer), positions_T_(positions_T) {}

void KvBlock::Norm(KvTape& tape) const {
  auto norm = RmsNormForward(*context_.backend, tape.x_TD, p_.norm1().weight, config_.rms_norm_eps);
  tape.rstd_T = norm.rstd_T;
  tape.h_TD = context_.tp->GatherRows(norm.y_TD, positions_T_.numel());
}

QkvHeads KvBlock::Kv(KvTape& tape) const {
  const at::Tensor kv_TJ = LinearForward(tape.h_TD, KvRows(p_.qkv().weight, config_), KvRows(p_.qkv_bias(), config_));
  QkvHeads heads = QkvForward(*context_.backend, kv_TJ, positions_T_, *context_.rope, KvShapeOf(config_), p_.qk_norm());
  if (config_.qk_norm) {
    tape.kv_TJ = kv_TJ;
    tape.rstd_k_TJ = heads.rstd_TJ;
  }
  return heads;
}

KvTape KvBlock::Forward(const at::Tensor& x_TD, v1::TapePolicy policy) const {
  KvTape tape;
  tape.x_TD = x_TD;
  Norm(tape);
  const QkvHeads heads = Kv(tape);
  tape.k_TKE = heads.k_TKE;
  tape.v_TKE = heads.v_TKE;
  for (const TapeTensor name : {TapeTensor::kNormed, TapeTensor::kBeforeQkNorm}) DropUnlessKept(tape, name, policy);
  return tape;
}

at::Tensor KvBlock::Backward(KvTape tape, const at::Tensor& gk_TKE, const at::Tensor& gv_TKE) const {
  if (!tape.h_TD.defined()) Norm(tape);
  if (config_.qk_norm && !tape.kv_TJ.defined()) Kv(tape);
  const at::Tensor dkv_TJ = QkvBackward(*context_.backend,
                                        {.dq_HTE = {},
                                         .dk_TKE = gk_TKE,
                                         .dv_TKE = gv_TKE,
                                         .qkv_TJ = tape.kv_TJ,
                                         .rstd_TJ = tape.rstd_k_TJ,
                                         .dq_norm_E = {},
                                         .dk_norm_E = p_.k_norm_grad()},
                                        positions_T_, *context_.rope, p_.qk_norm(), context_.weights->run_dtype);
  LinearBackwardWeight(*context_.backend, dkv_TJ, tape.h_TD, KvRows(p_.qkv().grad, config_),
                       KvRows(p_.qkv_bias_grad(), config_));
  const at::Tensor dh_TD = context_.tp->SumRows(LinearBackwardInput(dkv_TJ, KvRows(p_.qkv().weight, config_)));
  return RmsNormBackward(*context_.backend, {tape.x_TD, tape.rstd_T, p_.norm1().weight}, dh_TD, /*residual_TD=*/{},
                         p_.norm1().grad);
}

}  // namespace stemma::worker
