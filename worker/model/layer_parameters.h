// A layer's parameters by role. Private to worker/model.
#pragma once

#include <ATen/core/Tensor.h>

#include "worker/model/weights.h"
#include "worker/ops/qkv.h"

namespace stemma::worker {

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

  // Undefined where the family has none.
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

}  // namespace stemma::worker
