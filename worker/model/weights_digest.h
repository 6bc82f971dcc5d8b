// Tells whether two ranks loaded the same weights. Called by worker/engine on its thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "worker/model/weights.h"
#include "worker/parallel/communicator.h"

namespace stemma::worker {

// Returns 64 hex digits, of the names, shapes, dtypes and bytes of all parameters in the run's dtype, as this rank
// holds them. Found by it are mistakes (another model directory, a file that was changed), not forgeries. Costs one
// read of the weights.
std::string WeightsDigest(const Weights& weights);

// Returns the digest of a copy of the model, the same on every rank of the mesh: of the digests of the ranks that hold
// the copy together, in their order, and with one of them its own. The collective is "weights digest", which all ranks
// of `tp` have to come to: a rank that has no weights agrees with the others beforehand. Errors: Unavailable.
absl::StatusOr<std::string> MeshDigest(const Weights& weights, Communicator& tp);

// Mixes bytes, in their order, into 64 bits: one that changes always changes the result.
uint64_t MixBytes(const void* bytes, size_t count);

}  // namespace stemma::worker
