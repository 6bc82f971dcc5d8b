// What an MLP block keeps of its forward for its backward: worker/model/{mlp,moe}_block.h. Private to worker/model.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "worker/model/tape_entries.h"
#include "worker/ops/routing.h"

namespace stemma::worker {

// With experts, products and activations have a row for each assignment (A), else one for each row (T).
struct MlpTape {
  at::Tensor x_TD, rstd_T, h_TD;
  Routing routing;  // with experts only
  at::Tensor gate_up_AJ, act_AF;

  std::vector<TapeEntry> Entries() {
    return {{TapeTensor::kResidual, &x_TD},
            {TapeTensor::kStatistic, &rstd_T},
            {TapeTensor::kNormed, &h_TD},
            {TapeTensor::kRouting, &routing.experts_TU},
            {TapeTensor::kRouting, &routing.weights_TU},
            {TapeTensor::kRouting, &routing.probs_TX},
            {TapeTensor::kGateUp, &gate_up_AJ},
            {TapeTensor::kActivation, &act_AF}};
  }
};

}  // namespace stemma::worker
