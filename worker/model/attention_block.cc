#include "worker/model/attention_block.h"

#include <ATen/TensorOperators.h>

#include <utility>

#include "worker/ops/linear.h"
#include "worker/ops/norm.h"

namespace stemma::worker {
namespace {

QkvShape QkvShapeOf(const ModelConfig& config) { return {config.num_heads, config.num_kv_heads, config.head_size}; }

at::Tensor AddGradient(const at::Tensor& own, const at::Tensor& accumulated) {
  if (!accumulated.defined()) return own;
  return own.scalar_type() == accumulated.scalar_type() ? own.add(accumulated)
                                                        : own.to(accumulated.scalar_type()).add_(accumulated);
}

}  // namespace

std::vector<TapeEntry> AttentionTape::Entries() {
  return {{TapeTensor::kInput, &x_TD},
          {TapeTensor::kStatistic, &rstd_T},
          {TapeTensor::kNormed, &h_TD},
          {TapeTensor::kBeforeQkNorm, &qkv_TJ},
          {TapeTensor::kBeforeQkNorm, &rstd_qk_TJ},
          {TapeTensor::kQueries, &saved.q_HTE},
          {TapeTensor::kAttended, &saved.o_TD},
          {TapeTensor::kAttended, &saved.lse_HT}};
}

AttentionBlock::AttentionBlock(const LayerContext& context, int64_t layer, LayerSegments segments)
    : context_(context),
      config_(context.weights->config),
      p_(*context.weights, layer),
      batch_(std::move(segments.batch)),
      positions_T_(segments.positions_T),
      kv_(segments.kv) {}

void AttentionBlock::Norm(AttentionTape& tape) const {
  auto norm = RmsNormForward(*context_.backend, tape.x_TD, p_.norm1().weight, config_.rms_norm_eps);
  tape.rstd_T = norm.rstd_T;
  tape.h_TD = context_.tp->GatherRows(norm.y_TD, rows());
}

QkvHeads AttentionBlock::Qkv(AttentionTape& tape) const {
  const at::Tensor qkv_TJ = LinearForward(tape.h_TD, p_.qkv().weight, p_.qkv_bias());
  QkvHeads heads =
      QkvForward(*context_.backend, qkv_TJ, positions_T_, *context_.rope, QkvShapeOf(config_), p_.qk_norm());
  if (config_.qk_norm) {
    tape.qkv_TJ = qkv_TJ;
    tape.rstd_qk_TJ = heads.rstd_TJ;
  }
  return heads;
}

at::Tensor AttentionBlock::Attend(const QkvHeads& heads, AttentionTape& tape) const {
  tape.saved = context_.backend->attention->Forward(batch_, heads.q_HTE, heads.k_TKE, heads.v_TKE);
  return context_.tp->ForwardSum(tape.saved.o_TD, p_.o().weight, tape.x_TD);
}

at::Tensor AttentionBlock::Forward(const at::Tensor& x_TD, v1::TapePolicy policy, AttentionTape& tape) const {
  tape.x_TD = x_TD;
  Norm(tape);
  const QkvHeads heads = Qkv(tape);
  kv_.Made(heads.k_TKE, heads.v_TKE);
  at::Tensor y_TD = Attend(heads, tape);
  for (const TapeTensor name : {TapeTensor::kStatistic, TapeTensor::kNormed, TapeTensor::kBeforeQkNorm,
                                TapeTensor::kQueries, TapeTensor::kAttended}) {
    DropUnlessKept(tape, name, policy);
  }
  return y_TD;
}

void AttentionBlock::RestoreQueries(AttentionTape& tape) const {
  if (tape.saved.q_HTE.defined()) return;
  if (!tape.h_TD.defined()) Norm(tape);
  tape.saved.q_HTE = Qkv(tape).q_HTE;
}

at::Tensor AttentionBlock::RestoreOutput(AttentionTape& tape) const {
  RestoreQueries(tape);
  const AttentionSaved kept = tape.saved;
  return Attend({kept.q_HTE, kept.k_TKE, kept.v_TKE, {}}, tape);
}

at::Tensor AttentionBlock::Backward(const at::Tensor& dy_TD, AttentionTape tape) {
  RestoreQueries(tape);
  at::Tensor dsum_TD = context_.tp->GatherRows(dy_TD, rows());
  LinearBackwardWeight(*context_.backend, dsum_TD, tape.saved.o_TD, p_.o().grad, {});
  at::Tensor do_TD = LinearBackwardInput(dsum_TD, p_.o().weight);
  dsum_TD.reset();
  AttentionGradients grads = context_.backend->attention->Backward(batch_, do_TD, tape.saved);
  do_TD.reset();
  tape.saved = {};
  batch_ = {};
  at::Tensor dk_TKE, dv_TKE;
  {
    const KvGradients others = kv_.Gradients();
    dk_TKE = AddGradient(grads.dk_TKE, others.gk_TKE);
    dv_TKE = AddGradient(grads.dv_TKE, others.gv_TKE);
  }
  const at::Tensor dqkv_TJ = QkvBackward(*context_.backend,
                                         {.dq_HTE = grads.dq_HTE,
                                          .dk_TKE = dk_TKE,
                                          .dv_TKE = dv_TKE,
                                          .qkv_TJ = tape.qkv_TJ,
                                          .rstd_TJ = tape.rstd_qk_TJ,
                                          .dq_norm_E = p_.q_norm_grad(),
                                          .dk_norm_E = p_.k_norm_grad()},
                                         positions_T_, *context_.rope, p_.qk_norm(), context_.weights->run_dtype);
  grads = {};
  dk_TKE.reset();
  dv_TKE.reset();
  if (!tape.h_TD.defined()) Norm(tape);
  LinearBackwardWeight(*context_.backend, dqkv_TJ, tape.h_TD, p_.qkv().grad, p_.qkv_bias_grad());
  const at::Tensor dh_TD = context_.tp->SumRows(LinearBackwardInput(dqkv_TJ, p_.qkv().weight));
  return RmsNormBackward(*context_.backend, {tape.x_TD, tape.rstd_T, p_.norm1().weight}, dh_TD,
                         /*residual_TD=*/dy_TD, p_.norm1().grad);
}

}  // namespace stemma::worker
