// The buffers of sharded parameters (ZeRO-3): a rank keeps its part of every unit (common/cost/parameter_units.h), and
// has slots into which units are gathered in turn, for weights and, where they are made, for gradients. Called by
// MakeWeights; worker/model/sharded_units.h gathers.
//
// Afterwards each parameter's weight and gradient are views of its unit's slots, whole and in their shapes, so that
// layers read and add to them as with whole parameters; its shards are views of the rank's part. Parts are zeros until
// loaded: what lies between two parameters of a unit is never anything else.
#pragma once

#include <cstdint>

#include "worker/model/weights.h"

namespace stemma::worker {

// Gives `weights`, whose parameters have shapes and nothing else (of the meta device), their buffers. REQUIRES: rank <
// ranks.
void ShardParameters(int64_t rank, int64_t ranks, at::Device device, Weights& weights);

// Makes `gradients`, flat and as long as the unit gathered, what its parameters' gradients are views of, in place of
// what they were; to shards it makes no difference.
void PlaceGradients(int unit, const at::Tensor& gradients, Weights& weights);

}  // namespace stemma::worker
