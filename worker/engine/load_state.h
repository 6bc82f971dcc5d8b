// Where a worker's checkpoints are, and the state that it begins with. Called by worker/engine on its thread.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/model/model_directory.h"
#include "common/model/model_shard.h"
#include "stemma/internal/v1/worker.pb.h"
#include "worker/model/weights.h"
#include "worker/model/weights_io.h"

namespace stemma::worker {

// Returns the folder of all checkpoints; of one, whose name is one folder's name.
std::string CheckpointsFolder(const internal::v1::Configure& configure);
std::string CheckpointFolder(const internal::v1::Configure& configure, const std::string& name);

// Loads this rank's part of the state that Configure names: a checkpoint's, or the model directory's weights with
// moments of zero. The rank that writes the directory's other files warns of those that it will leave out. Errors: as
// of LoadWeights and LoadCheckpoint; InvalidArgument - the checkpoint's name is none.
absl::StatusOr<Weights> LoadState(const internal::v1::Configure& configure, const ModelDirectory& directory,
                                  const ModelShard& shard, at::ScalarType dtype, at::Device device,
                                  const StateOptions& states);

}  // namespace stemma::worker
