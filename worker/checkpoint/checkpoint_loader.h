// The training state from a checkpoint's folder: masters, and the moments of what this rank owns; or its weights alone,
// for a forward-only pass. Called by worker/engine on its thread.
//
// Nothing in the folder is believed: it may have been cut, mixed or made by hand. Links are refused, so that what was
// verified is what is read.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/model/model_shard.h"
#include "worker/model/weights.h"
#include "worker/model/weights_io.h"

namespace stemma::worker {

// `shard`: what this rank holds of the run's model, which the checkpoint's must equal in everything but the dtype of
// its files. Reads the masters of all that it holds, which are its weights, and of the moments the bytes that `states`
// says it owns, whatever ranks wrote them. Numbers in F32 or F64 that the run holds in the other one are converted,
// which a line of the log says. Errors name the file, the tensor and the element: InvalidArgument - a link, another
// config (names the first field), a tensor that is missing, does not belong, has another shape or dtype, or holds a
// number that is not finite; NotFound - no such folder or file; those of LoadWeights.
absl::StatusOr<Weights> LoadCheckpoint(const std::string& folder, const ModelShard& shard, at::ScalarType run_dtype,
                                       at::Device device, const StateOptions& states);

// Loads its weights alone, without gradients, masters and moments. Errors: as of LoadCheckpoint.
absl::StatusOr<Weights> LoadCheckpointWeights(const std::string& folder, const ModelShard& shard,
                                              at::ScalarType run_dtype, at::Device device,
                                              const ParameterOwners& owners = {});

// Returns whether weights that were loaded are those that were saved. `found`: their MeshDigest
// (worker/model/weights_digest.h); `saved`: the one that the checkpoint says, empty: any. Errors: CORRUPT_CHECKPOINT.
absl::Status CheckWeightsDigest(const std::string& folder, const std::string& found, const std::string& saved);

}  // namespace stemma::worker
