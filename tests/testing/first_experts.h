// Weights of which all rows choose the same experts, so that one rank of several has all that it can have.
#pragma once

#include "tests/testing/namespaces.h"
#include "worker/model/weights.h"

namespace stemma::testing {

// Makes the products of each router equal, of which the lowest experts are chosen.
inline void SendAllRowsToTheFirstExperts(const worker::Weights& weights) {
  for (const worker::LayerWeights& layer : weights.layers) {
    const int router = layer[TensorRole::kRouter];
    if (router >= 0) weights.at(router).weight.zero_();
  }
}

}  // namespace stemma::testing
