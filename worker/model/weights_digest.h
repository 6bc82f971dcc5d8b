// Tells whether two ranks loaded the same weights, and whether weights are those that were saved. Called by
// worker/engine on its thread.
//
// A digest is of the model, and not of a mesh: every rank adds what it holds, each element once, times factors of its
// row and column in its tensor, so that the sum of all ranks does not depend on how tensors are cut. Factors are odd:
// an element that changes alone always changes the sum. Of a box that several ranks hold, such as a norm's weights
// under tensor parallelism, one of them tells the elements; where the others hold other bits, there is no one model,
// and the digest of each tp and pp rank is its own. Found by it are mistakes (another model directory, a file that was
// changed, ranks that drift apart), not forgeries.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "worker/backend/kernels.h"
#include "worker/model/weights.h"
#include "worker/parallel/communicator.h"

namespace stemma::worker {

// The ranks that hold one model together: of tp and pp, and where parameters are sharded those that divide them.
struct DigestRanks {
  Communicator &tp, &pp, &data;
};

// Returns the digest (common/base/weights_digest_text.h) of the names, sizes, dtypes and bytes of all tensors in the
// run's dtype. It is the same on every one of `ranks`, whose weights are of one model, and which all come to it: a rank
// that has no weights agrees with the others beforehand. The collective is "weights_digest". Costs one read of the
// weights. Errors: Unavailable.
absl::StatusOr<std::string> MeshDigest(const Weights& weights, const Kernels& kernels, const DigestRanks& ranks);

}  // namespace stemma::worker
