// What the rank of a mesh that holds most computes with, and what its phases' bytes depend on. Pure; used by the
// server, which plans for that rank, and by common/cost/state_bytes.h.
#pragma once

#include "common/cost/cost.h"
#include "common/model/model_config.h"
#include "common/model/model_shard.h"
#include "stemma/v1/run_config.pb.h"

namespace stemma {

// Returns what the tensor-parallel rank holds that holds most: heads and columns are cut evenly, and of the vocabulary
// the last rank has no fewer tokens than any other. REQUIRES: MakeModelShard accepts the mesh.
ModelShard LargestShard(const ModelConfig& model, const v1::Mesh& mesh);

// Returns what the phases of the largest rank of a run depend on.
ByteShape RankShape(const ModelConfig& model, const v1::RunConfig& run);

}  // namespace stemma
