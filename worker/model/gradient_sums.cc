#include "worker/model/gradient_sums.h"

#include <ATen/ops/zeros_like.h>

#include "worker/model/sharded_weights.h"

namespace stemma::worker {

GradientSums::GradientSums(Weights& weights) : weights_(weights) {
  std::vector<at::Tensor> sums;
  for (const UnitBuffers& unit : weights.unit_buffers) {
    slots_.push_back(unit.gradients);
    sums.push_back(at::zeros_like(unit.gradients));
  }
  for (size_t unit = 0; unit < sums.size(); ++unit) PlaceGradients(static_cast<int>(unit), sums[unit], weights);
}

GradientSums::~GradientSums() {
  for (size_t unit = 0; unit < slots_.size(); ++unit) PlaceGradients(static_cast<int>(unit), slots_[unit], weights_);
}

}  // namespace stemma::worker
