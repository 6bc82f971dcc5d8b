// The shard of a rank that shares its model with no other.
#pragma once

#include "common/model/model_shard.h"

namespace stemma::testing {

inline ModelShard WholeModel(const ModelConfig& config) { return MakeModelShard(config, {}).value(); }

}  // namespace stemma::testing
