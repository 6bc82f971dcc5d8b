// Which layers each stage of a pipeline has. Pure; used by MakeModelShard(), and so by all that cut a model or price a
// part of it.
//
// The last stage has the head beside its layers, so it has fewer of them: counts are such that the most that any stage
// multiplies of a suffix's row is least. Of what then is left to choose, the last stage has as many layers as it can,
// and earlier stages fewer than later ones, because they hold the tapes of more waves.
#pragma once

#include <cstdint>
#include <vector>

#include "common/model/model_config.h"

namespace stemma {

// Returns the first layer of each stage and, at the end, the number of layers. REQUIRES: 1 <= stages <= num_layers.
std::vector<int64_t> StageBegins(const ModelConfig& config, int64_t stages);

}  // namespace stemma
