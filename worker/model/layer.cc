#include "worker/model/layer.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>

#include <utility>

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

}  // namespace

LayerResult LayerForward(const LayerContext& context, int64_t layer, const AttentionBatch& batch,
                         const at::Tensor& positions_T, const at::Tensor& x_TD) {
  const ModelConfig& config = context.weights->config;
  const LayerParameters p(*context.weights, layer);
  LayerTape tape;
  tape.x_TD = x_TD;
  auto norm1 = RmsNormForward(x_TD, p.norm1().weight, config.rms_norm_eps);
  tape.rstd1_T = norm1.rstd_T;
  tape.h1_TD = norm1.y_TD;
  {
    const at::Tensor qkv_TX = LinearForward(tape.h1_TD, p.qkv().weight, p.qkv_bias());
    const QkvHeads heads = QkvForward(qkv_TX, positions_T, *context.rope, ShapeOf(config), p.qk_norm());
    if (config.qk_norm) {
      tape.qkv_TX = qkv_TX;
      tape.rstd_qk_TX = heads.rstd_TX;
    }
    tape.attention = AttentionForward(*context.kernel, batch, heads.q_HTE, heads.k_KTE, heads.v_KTE);
  }
  tape.x2_TD = LinearForwardAdd(tape.attention.o_TD, p.o().weight, x_TD);
  auto norm2 = RmsNormForward(tape.x2_TD, p.norm2().weight, config.rms_norm_eps);
  tape.rstd2_T = norm2.rstd_T;
  tape.h2_TD = norm2.y_TD;
  tape.gate_up_TX = LinearForward(tape.h2_TD, p.gate_up().weight, {});
  tape.act_TF = SwigluForward(tape.gate_up_TX);
  at::Tensor y_TD = LinearForwardAdd(tape.act_TF, p.down().weight, tape.x2_TD);
  return {std::move(y_TD), std::move(tape)};
}

at::Tensor LayerBackward(const LayerContext& context, int64_t layer, const AttentionBatch& batch,
                         const at::Tensor& positions_T, at::Tensor dy_TD, LayerTape tape, const at::Tensor& gk_KTE,
                         const at::Tensor& gv_KTE) {
  const Weights& weights = *context.weights;
  const ModelConfig& config = weights.config;
  const LayerParameters p(weights, layer);

  LinearBackwardWeight(dy_TD, tape.act_TF, p.down().grad, {});
  tape.act_TF.reset();
  at::Tensor dgate_up_TX = SwigluBackward(LinearBackwardInput(dy_TD, p.down().weight), tape.gate_up_TX);
  tape.gate_up_TX.reset();
  LinearBackwardWeight(dgate_up_TX, tape.h2_TD, p.gate_up().grad, {});
  tape.h2_TD.reset();
  const at::Tensor dh2_TD = LinearBackwardInput(dgate_up_TX, p.gate_up().weight);
  dgate_up_TX.reset();
  const at::Tensor dx2_TD = RmsNormBackward(dh2_TD, tape.x2_TD, tape.rstd2_T, p.norm2().weight, dy_TD, p.norm2().grad);
  dy_TD.reset();
  tape.x2_TD.reset();

  LinearBackwardWeight(dx2_TD, tape.attention.o_TD, p.o().grad, {});
  AttentionGradients grads =
      AttentionBackward(*context.kernel, batch, LinearBackwardInput(dx2_TD, p.o().weight), tape.attention);
  tape.attention = {};
  const at::Tensor dqkv_TX = QkvBackward(
      grads.dq_HTE, AddGradient(grads.dk_KTE, gk_KTE), AddGradient(grads.dv_KTE, gv_KTE), positions_T, *context.rope,
      ShapeOf(config), p.qk_norm(), tape.qkv_TX, tape.rstd_qk_TX, p.q_norm_grad(), p.k_norm_grad(), weights.run_dtype);
  grads = {};
  LinearBackwardWeight(dqkv_TX, tape.h1_TD, p.qkv().grad, p.qkv_bias_grad());
  const at::Tensor dh1_TD = LinearBackwardInput(dqkv_TX, p.qkv().weight);
  return RmsNormBackward(dh1_TD, tape.x_TD, tape.rstd1_T, p.norm1().weight, dx2_TD, p.norm1().grad);
}

KvTape KvOnlyForward(const LayerContext& context, int64_t layer, const at::Tensor& positions_T,
                     const at::Tensor& x_TD) {
  const ModelConfig& config = context.weights->config;
  const LayerParameters p(*context.weights, layer);
  KvTape tape;
  tape.x_TD = x_TD;
  auto norm1 = RmsNormForward(x_TD, p.norm1().weight, config.rms_norm_eps);
  tape.rstd1_T = norm1.rstd_T;
  tape.h1_TD = norm1.y_TD;
  const at::Tensor kv_TX = LinearForward(tape.h1_TD, KvRows(p.qkv().weight, config), KvRows(p.qkv_bias(), config));
  const QkvHeads heads = QkvForward(kv_TX, positions_T, *context.rope, KvShapeOf(config), p.qk_norm());
  if (config.qk_norm) {
    tape.kv_TX = kv_TX;
    tape.rstd_k_TX = heads.rstd_TX;
  }
  tape.k_KTE = heads.k_KTE;
  tape.v_KTE = heads.v_KTE;
  return tape;
}

at::Tensor KvOnlyBackward(const LayerContext& context, int64_t layer, const at::Tensor& positions_T, KvTape tape,
                          const at::Tensor& gk_KTE, const at::Tensor& gv_KTE) {
  const Weights& weights = *context.weights;
  const ModelConfig& config = weights.config;
  const LayerParameters p(weights, layer);
  const at::Tensor dkv_TX = QkvBackward({}, gk_KTE, gv_KTE, positions_T, *context.rope, KvShapeOf(config), p.qk_norm(),
                                        tape.kv_TX, tape.rstd_k_TX, {}, p.k_norm_grad(), weights.run_dtype);
  LinearBackwardWeight(dkv_TX, tape.h1_TD, KvRows(p.qkv().grad, config), KvRows(p.qkv_bias_grad(), config));
  const at::Tensor dh1_TD = LinearBackwardInput(dkv_TX, KvRows(p.qkv().weight, config));
  return RmsNormBackward(dh1_TD, tape.x_TD, tape.rstd1_T, p.norm1().weight, /*residual_TD=*/{}, p.norm1().grad);
}

}  // namespace stemma
