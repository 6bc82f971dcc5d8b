// A model's shape without its weights: from a model directory, its config.json, or a published size by its name.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/model/model_config.h"

namespace stemma::cli {

// `text`: a directory that holds config.json, a file, or the name of a size that is known (an organisation before a
// slash is passed over, case does not count: "Qwen/Qwen3-8B"). Errors: exit code 2, with the nearest name.
absl::StatusOr<ModelConfig> ReadModelShape(const std::string& text);

}  // namespace stemma::cli
