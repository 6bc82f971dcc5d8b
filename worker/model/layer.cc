#include "worker/model/layer.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <glog/logging.h>

#include <utility>

#include "common/tape_policy.h"
#include "worker/ops/linear.h"
#include "worker/ops/norm.h"
#include "worker/ops/swiglu.h"

namespace stemma {
namespace {

// A layer's parameters by role.
class LayerParameters {
 public:
  LayerParameters(const Weights& weights, int64_t layer)
      : weights_(weights), layer_(weights.layers[static_cast<size_t>(layer)]) {}

  const Parameter& norm1() const { return weights_.at(layer_.norm1); }
  const Parameter& qkv() const { return weights_.at(layer_.qkv); }
  const Parameter& o() const { return weights_.at(layer_.o); }
  const Parameter& norm2() const { return weights_.at(layer_.norm2); }
  const Parameter& gate_up() const { return weights_.at(layer_.gate_up); }
  const Parameter& down() const { return weights_.at(layer_.down); }

  at::Tensor qkv_bias() const { return Optional(layer_.qkv_bias, &Parameter::weight); }
  at::Tensor qkv_bias_grad() const { return Optional(layer_.qkv_bias, &Parameter::grad); }
  at::Tensor q_norm_grad() const { return Optional(layer_.q_norm, &Parameter::grad); }
  at::Tensor k_norm_grad() const { return Optional(layer_.k_norm, &Parameter::grad); }
  QkNorm qk_norm() const {
    return {Optional(layer_.q_norm, &Parameter::weight), Optional(layer_.k_norm, &Parameter::weight),
            weights_.config.rms_norm_eps};
  }

 private:
  at::Tensor Optional(int index, at::Tensor Parameter::*field) const {
    return index < 0 ? at::Tensor() : weights_.at(index).*field;
  }
  const Weights& weights_;
  const LayerWeights& layer_;
};

QkvShape ShapeOf(const ModelConfig& config) { return {config.num_heads, config.num_kv_heads, config.head_size}; }
QkvShape KvShapeOf(const ModelConfig& config) { return {0, config.num_kv_heads, config.head_size}; }

// The K and V rows of a fused [q; k; v] tensor.
at::Tensor KvRows(const at::Tensor& qkv, const ModelConfig& config) {
  return qkv.defined() ? qkv.slice(0, config.q_size()) : qkv;
}

at::Tensor AddGradient(const at::Tensor& own, const at::Tensor& accumulated) {
  if (!accumulated.defined()) return own;
  return own.scalar_type() == accumulated.scalar_type() ? own.add(accumulated)
                                                        : own.to(accumulated.scalar_type()).add_(accumulated);
}

// The steps of a layer's forward. Each writes what it made into the tape; backward calls those again whose results the
// policy dropped.
class LayerSteps {
 public:
  LayerSteps(const LayerContext& context, int64_t layer, const AttentionBatch& batch, const at::Tensor& positions_T,
             LayerTape& tape)
      : context_(context),
        config_(context.weights->config),
        p_(*context.weights, layer),
        batch_(batch),
        positions_T_(positions_T),
        tape_(tape) {}

  void Norm1() {
    auto norm = RmsNormForward(tape_.x_TD, p_.norm1().weight, config_.rms_norm_eps);
    tape_.rstd1_T = norm.rstd_T;
    tape_.h1_TD = norm.y_TD;
  }

  QkvHeads Qkv() {
    const at::Tensor qkv_TX = LinearForward(tape_.h1_TD, p_.qkv().weight, p_.qkv_bias());
    QkvHeads heads = QkvForward(qkv_TX, positions_T_, *context_.rope, ShapeOf(config_), p_.qk_norm());
    if (config_.qk_norm) {
      tape_.qkv_TX = qkv_TX;
      tape_.rstd_qk_TX = heads.rstd_TX;
    }
    return heads;
  }

  void Attention(const QkvHeads& heads) {
    tape_.attention = AttentionForward(*context_.kernel, batch_, heads.q_HTE, heads.k_KTE, heads.v_KTE);
    tape_.x2_TD = LinearForwardAdd(tape_.attention.o_TD, p_.o().weight, tape_.x_TD);
  }

  void Norm2() {
    auto norm = RmsNormForward(tape_.x2_TD, p_.norm2().weight, config_.rms_norm_eps);
    tape_.rstd2_T = norm.rstd_T;
    tape_.h2_TD = norm.y_TD;
  }

  void GateUp() { tape_.gate_up_TX = LinearForward(tape_.h2_TD, p_.gate_up().weight, {}); }
  void Act() { tape_.act_TF = SwigluForward(tape_.gate_up_TX); }
  at::Tensor Down() { return LinearForwardAdd(tape_.act_TF, p_.down().weight, tape_.x2_TD); }

  // What the backward of the MLP reads.
  void RestoreMlp() {
    if (!tape_.x2_TD.defined()) RestoreAttention();
    if (!tape_.h2_TD.defined()) Norm2();
    if (!tape_.gate_up_TX.defined()) GateUp();
    if (!tape_.act_TF.defined()) Act();
  }

  // The queries, whose K and V are at hand, and with QK-norm what comes before it.
  void RestoreQueries() {
    if (tape_.attention.q_HTE.defined()) return;
    if (!tape_.h1_TD.defined()) Norm1();
    tape_.attention.q_HTE = Qkv().q_HTE;
  }

  void RestoreNorm1() {
    if (!tape_.h1_TD.defined()) Norm1();
  }

 private:
  void RestoreAttention() {
    RestoreQueries();
    const AttentionSaved kept = tape_.attention;
    Attention({kept.q_HTE, kept.k_KTE, kept.v_KTE, {}});
  }

  const LayerContext& context_;
  const ModelConfig& config_;
  const LayerParameters p_;
  const AttentionBatch& batch_;
  const at::Tensor& positions_T_;
  LayerTape& tape_;
};

std::vector<at::Tensor*> Leaving(LayerTape& t) {
  return {&t.x_TD,           &t.rstd1_T,          &t.h1_TD, &t.qkv_TX,  &t.rstd_qk_TX, &t.attention.q_HTE,
          &t.attention.o_TD, &t.attention.lse_HT, &t.x2_TD, &t.rstd2_T, &t.h2_TD,      &t.gate_up_TX,
          &t.act_TF};
}

std::vector<at::Tensor*> Leaving(KvTape& t) { return {&t.x_TD, &t.rstd1_T, &t.h1_TD, &t.kv_TX, &t.rstd_k_TX}; }

std::vector<at::Tensor> Take(const std::vector<at::Tensor*>& from) {
  std::vector<at::Tensor> tensors;
  for (at::Tensor* tensor : from) tensors.push_back(std::exchange(*tensor, {}));
  return tensors;
}

void Put(std::vector<at::Tensor> tensors, const std::vector<at::Tensor*>& to) {
  CHECK_EQ(tensors.size(), to.size());
  for (size_t i = 0; i < to.size(); ++i) *to[i] = std::move(tensors[i]);
}

}  // namespace

std::vector<at::Tensor> TakeTensors(LayerTape& tape) { return Take(Leaving(tape)); }
void PutTensors(LayerTape& tape, std::vector<at::Tensor> tensors) { Put(std::move(tensors), Leaving(tape)); }
std::vector<at::Tensor> TakeTensors(KvTape& tape) { return Take(Leaving(tape)); }
void PutTensors(KvTape& tape, std::vector<at::Tensor> tensors) { Put(std::move(tensors), Leaving(tape)); }

LayerResult LayerForward(const LayerContext& context, int64_t layer, const AttentionBatch& batch,
                         const at::Tensor& positions_T, const at::Tensor& x_TD, v1::TapePolicy policy) {
  LayerTape tape;
  tape.x_TD = x_TD;
  LayerSteps steps(context, layer, batch, positions_T, tape);
  steps.Norm1();
  steps.Attention(steps.Qkv());
  if (!KeepsElementwise(policy)) tape.h1_TD.reset();
  if (!KeepsQueries(policy)) {
    tape.attention.q_HTE.reset();
    tape.qkv_TX.reset();
    tape.rstd_qk_TX.reset();
  }
  if (!KeepsAttention(policy)) {
    tape.attention.o_TD.reset();
    tape.attention.lse_HT.reset();
  }
  steps.Norm2();
  steps.GateUp();
  if (!KeepsElementwise(policy)) tape.h2_TD.reset();
  steps.Act();
  if (!KeepsGateUp(policy)) tape.gate_up_TX.reset();
  at::Tensor y_TD = steps.Down();
  if (!KeepsElementwise(policy)) tape.act_TF.reset();
  if (!KeepsAttention(policy)) {
    tape.x2_TD.reset();
    tape.rstd1_T.reset();
    tape.rstd2_T.reset();
  }
  return {std::move(y_TD), std::move(tape)};
}

at::Tensor LayerBackward(const LayerContext& context, int64_t layer, const AttentionBatch& batch,
                         const at::Tensor& positions_T, at::Tensor dy_TD, LayerTape tape, const at::Tensor& gk_KTE,
                         const at::Tensor& gv_KTE) {
  const Weights& weights = *context.weights;
  const ModelConfig& config = weights.config;
  const LayerParameters p(weights, layer);
  LayerSteps steps(context, layer, batch, positions_T, tape);

  steps.RestoreMlp();
  LinearBackwardWeight(dy_TD, tape.act_TF, p.down().grad, {});
  tape.act_TF.reset();
  at::Tensor dgate_up_TX = SwigluBackward(LinearBackwardInput(dy_TD, p.down().weight), tape.gate_up_TX);
  tape.gate_up_TX.reset();
  LinearBackwardWeight(dgate_up_TX, tape.h2_TD, p.gate_up().grad, {});
  tape.h2_TD.reset();
  at::Tensor dh2_TD = LinearBackwardInput(dgate_up_TX, p.gate_up().weight);
  dgate_up_TX.reset();
  const at::Tensor dx2_TD = RmsNormBackward(dh2_TD, tape.x2_TD, tape.rstd2_T, p.norm2().weight, dy_TD, p.norm2().grad);
  dh2_TD.reset();
  dy_TD.reset();
  tape.x2_TD.reset();

  steps.RestoreQueries();
  LinearBackwardWeight(dx2_TD, tape.attention.o_TD, p.o().grad, {});
  AttentionGradients grads =
      AttentionBackward(*context.kernel, batch, LinearBackwardInput(dx2_TD, p.o().weight), tape.attention);
  tape.attention = {};
  const at::Tensor dqkv_TX = QkvBackward(
      grads.dq_HTE, AddGradient(grads.dk_KTE, gk_KTE), AddGradient(grads.dv_KTE, gv_KTE), positions_T, *context.rope,
      ShapeOf(config), p.qk_norm(), tape.qkv_TX, tape.rstd_qk_TX, p.q_norm_grad(), p.k_norm_grad(), weights.run_dtype);
  grads = {};
  steps.RestoreNorm1();
  LinearBackwardWeight(dqkv_TX, tape.h1_TD, p.qkv().grad, p.qkv_bias_grad());
  const at::Tensor dh1_TD = LinearBackwardInput(dqkv_TX, p.qkv().weight);
  return RmsNormBackward(dh1_TD, tape.x_TD, tape.rstd1_T, p.norm1().weight, dx2_TD, p.norm1().grad);
}

namespace {

void KvNorm(const LayerContext& context, const LayerParameters& p, KvTape& tape) {
  auto norm = RmsNormForward(tape.x_TD, p.norm1().weight, context.weights->config.rms_norm_eps);
  tape.rstd1_T = norm.rstd_T;
  tape.h1_TD = norm.y_TD;
}

QkvHeads Kv(const LayerContext& context, const LayerParameters& p, const at::Tensor& positions_T, KvTape& tape) {
  const ModelConfig& config = context.weights->config;
  const at::Tensor kv_TX = LinearForward(tape.h1_TD, KvRows(p.qkv().weight, config), KvRows(p.qkv_bias(), config));
  QkvHeads heads = QkvForward(kv_TX, positions_T, *context.rope, KvShapeOf(config), p.qk_norm());
  if (config.qk_norm) {
    tape.kv_TX = kv_TX;
    tape.rstd_k_TX = heads.rstd_TX;
  }
  return heads;
}

}  // namespace

KvTape KvOnlyForward(const LayerContext& context, int64_t layer, const at::Tensor& positions_T, const at::Tensor& x_TD,
                     v1::TapePolicy policy) {
  const LayerParameters p(*context.weights, layer);
  KvTape tape;
  tape.x_TD = x_TD;
  KvNorm(context, p, tape);
  const QkvHeads heads = Kv(context, p, positions_T, tape);
  tape.k_KTE = heads.k_KTE;
  tape.v_KTE = heads.v_KTE;
  if (!KeepsElementwise(policy)) tape.h1_TD.reset();
  if (!KeepsQueries(policy)) {
    tape.kv_TX.reset();
    tape.rstd_k_TX.reset();
  }
  return tape;
}

at::Tensor KvOnlyBackward(const LayerContext& context, int64_t layer, const at::Tensor& positions_T, KvTape tape,
                          const at::Tensor& gk_KTE, const at::Tensor& gv_KTE) {
  const Weights& weights = *context.weights;
  const ModelConfig& config = weights.config;
  const LayerParameters p(weights, layer);
  if (!tape.h1_TD.defined()) KvNorm(context, p, tape);
  if (config.qk_norm && !tape.kv_TX.defined()) Kv(context, p, positions_T, tape);
  const at::Tensor dkv_TX = QkvBackward({}, gk_KTE, gv_KTE, positions_T, *context.rope, KvShapeOf(config), p.qk_norm(),
                                        tape.kv_TX, tape.rstd_k_TX, {}, p.k_norm_grad(), weights.run_dtype);
  LinearBackwardWeight(dkv_TX, tape.h1_TD, KvRows(p.qkv().grad, config), KvRows(p.qkv_bias_grad(), config));
  const at::Tensor dh1_TD = LinearBackwardInput(dkv_TX, KvRows(p.qkv().weight, config));
  return RmsNormBackward(dh1_TD, tape.x_TD, tape.rstd1_T, p.norm1().weight, /*residual_TD=*/{}, p.norm1().grad);
}

}  // namespace stemma
