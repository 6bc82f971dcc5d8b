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

  const Parameter& norm1() const { return weights_.at(layer_[TensorRole::kNorm1]); }
  const Parameter& qkv() const { return weights_.at(layer_[TensorRole::kQkv]); }
  const Parameter& o() const { return weights_.at(layer_[TensorRole::kO]); }
  const Parameter& norm2() const { return weights_.at(layer_[TensorRole::kNorm2]); }
  const Parameter& router() const { return weights_.at(layer_[TensorRole::kRouter]); }  // with experts only
  const Parameter& gate_up() const { return weights_.at(layer_[TensorRole::kGateUp]); }
  const Parameter& down() const { return weights_.at(layer_[TensorRole::kDown]); }

  // Undefined where the family has none.
  at::Tensor qkv_bias() const { return Optional(layer_[TensorRole::kQkvBias], &Parameter::weight); }
  at::Tensor qkv_bias_grad() const { return Optional(layer_[TensorRole::kQkvBias], &Parameter::grad); }
  at::Tensor q_norm_grad() const { return Optional(layer_[TensorRole::kQNorm], &Parameter::grad); }
  at::Tensor k_norm_grad() const { return Optional(layer_[TensorRole::kKNorm], &Parameter::grad); }
  QkNorm qk_norm() const {
    return {Optional(layer_[TensorRole::kQNorm], &Parameter::weight),
            Optional(layer_[TensorRole::kKNorm], &Parameter::weight), weights_.config.rms_norm_eps};
  }

 private:
  at::Tensor Optional(int index, at::Tensor Parameter::*field) const {
    return index < 0 ? at::Tensor() : weights_.at(index).*field;
  }
  const Weights& weights_;
  const LayerWeights& layer_;
};

}  // namespace stemma::worker
