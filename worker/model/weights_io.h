// Weights from Hugging Face safetensors; back to them: weights_export.h. Called by worker/engine on its thread.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/model/model_directory.h"
#include "stemma/v1/run_config.pb.h"
#include "worker/model/weights.h"

namespace stemma::worker {

// Which optimizer states are made, and where: those of one of the ranks that hold the same part of the model.
struct StateOptions {
  v1::OptimizerResidency residency = v1::DEVICE;
  ParameterOwners owners = {};
  PageLock* page_lock = nullptr;  // of states in host memory, which they outlive; null: none
};

// Takes what FindRunDtype knows (common/base/dtype_names.h). Errors: InvalidArgument.
absl::StatusOr<at::ScalarType> ParseRunDtype(const std::string& name);

// Errors: InvalidArgument - a tensor is missing, of a dtype that is not supported, or holds a number that is not finite
// (in the run's dtype), or a tied model's files hold a head that is not the embedding (in the run's dtype, of the
// elements that this rank has); names the file, the tensor and the element; ResourceExhausted - the host has no room
// for states. `shard`: of the directory's model.
absl::StatusOr<Weights> LoadWeights(const ModelDirectory& directory, const ModelShard& shard, at::ScalarType run_dtype,
                                    at::Device device, const StateOptions& states);

// Loads weights that are read and never trained: without gradients, masters and moments. Errors: as of LoadWeights.
absl::StatusOr<Weights> LoadFrozenWeights(const ModelDirectory& directory, const ModelShard& shard,
                                          at::ScalarType run_dtype, at::Device device,
                                          const ParameterOwners& owners = {});

}  // namespace stemma::worker
