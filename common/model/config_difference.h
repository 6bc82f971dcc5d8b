// Whether two directories hold the same model, whatever the dtype of their files.
#pragma once

#include <string>

#include "common/model/model_config.h"

namespace stemma {

// Returns the first field, as config.json names it, in which they differ; empty: none does.
std::string FirstDifference(const ModelConfig& a, const ModelConfig& b);

}  // namespace stemma
