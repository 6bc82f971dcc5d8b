// Weights from and to Hugging Face safetensors. Called by worker/engine on its thread.
//
// An export keeps names, files, order and, unless another is asked for, each tensor's dtype: before any step it is byte
// for byte what was loaded. Config and tokenizer files are copied (with another dtype, the config's dtype is changed).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/model/model_directory.h"
#include "stemma/v1/run_config.pb.h"
#include "worker/model/weights.h"

namespace stemma::worker {

// Which optimizer states are made, and where: those of a rank of the data-parallel axis.
struct StateOptions {
  v1::OptimizerResidency residency = v1::DEVICE;
  int64_t rank = 0, ranks = 1;
};

// Takes what FindRunDtype knows (common/base/dtype_names.h). Errors: InvalidArgument.
absl::StatusOr<at::ScalarType> ParseRunDtype(const std::string& name);

// Errors: InvalidArgument - a tensor is missing, of a dtype that is not supported, or holds a number that is not finite
// (in the run's dtype); names the file, the tensor and the element; ResourceExhausted - the host has no room for
// states. `shard`: of the directory's model.
absl::StatusOr<Weights> LoadWeights(const ModelDirectory& directory, const ModelShard& shard, at::ScalarType run_dtype,
                                    at::Device device, const StateOptions& states);

// Writes into a temporary directory beside `target` and renames it when complete; after an error nothing is left of it.
// REQUIRES: the weights of the whole model. `dtype`: float32, float64, bfloat16, float16; absent: as loaded. Returns
// the bytes of the safetensors files. Errors: AlreadyExists - `target` is there; InvalidArgument - unknown dtype, or
// config or index are no objects any more; the file system's.
absl::StatusOr<uint64_t> ExportWeights(const Weights& weights, const ModelDirectory& source, const std::string& target,
                                       const std::optional<std::string>& dtype);

}  // namespace stemma::worker
