// The training state from a checkpoint's folder: masters, and the moments of what this rank owns; or its weights alone,
// for a forward-only pass. Called by worker/engine on its thread.
//
// Nothing in the folder is believed: it may have been cut, mixed or made by hand. Links are refused, so that what was
// verified is what is read.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/model/model_config.h"
#include "worker/model/weights.h"
#include "worker/model/weights_io.h"

namespace stemma::worker {

// `config`: of the run's model, which the checkpoint's must equal in everything but the dtype of its files. Reads all
// masters, which are the weights of every rank, and of the moments the bytes that `states` says this rank owns. Numbers
// in F32 or F64 that the run holds in the other one are converted, which a line of the log says. Errors name the file,
// the tensor and the element: InvalidArgument - a link, another config (names the first field), a tensor that is
// missing, does not belong, has another shape or dtype, or holds a number that is not finite; NotFound - no such folder
// or file; those of LoadWeights.
absl::StatusOr<Weights> LoadCheckpoint(const std::string& folder, const ModelConfig& config, at::ScalarType run_dtype,
                                       at::Device device, const StateOptions& states);

// Loads its weights alone, without gradients, masters and moments. `weights_digest`: that they must have
// (worker/model/weights_digest.h); empty: any. Errors: as of LoadCheckpoint; CORRUPT_CHECKPOINT - the weights have
// another digest.
absl::StatusOr<Weights> LoadCheckpointWeights(const std::string& folder, const ModelConfig& config,
                                              at::ScalarType run_dtype, at::Device device,
                                              const std::string& weights_digest);

}  // namespace stemma::worker
