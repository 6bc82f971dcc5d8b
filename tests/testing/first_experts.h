// Weights of which all rows choose the same experts, so that one rank of several has all that it can have.
#pragma once

#include "tests/testing/namespaces.h"
#include "worker/model/weights.h"

namespace stemma::testing {

// Makes the products of each router equal, of which the lowest experts are chosen. REQUIRES: the model has experts.
inline void SendAllRowsToTheFirstExperts(const worker::Weights& weights) {
  for (const worker::LayerWeights& layer : weights.layers) weights.at(layer[TensorRole::kRouter]).weight.zero_();
}

}  // namespace stemma::testing
