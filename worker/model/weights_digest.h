// Tells whether two ranks loaded the same weights. Called by worker/engine on its thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "worker/model/weights.h"

namespace stemma::worker {

// Returns 64 hex digits, of the names, shapes, dtypes and bytes of all parameters in the run's dtype, as every rank
// holds them. Found by it are mistakes (another model directory, a file that was changed), not forgeries. Costs one
// read of the weights.
std::string WeightsDigest(const Weights& weights);

// Mixes bytes, in their order, into 64 bits: one that changes always changes the result.
uint64_t MixBytes(const void* bytes, size_t count);

}  // namespace stemma::worker
