// What the rank of a mesh that holds most computes with, and what its phases' bytes depend on. Pure; used by the
// server, which plans for that rank, and by common/cost/state_bytes.h.
#pragma once

#include <vector>

#include "common/cost/byte_shape.h"
#include "common/model/model_config.h"
#include "common/model/model_shard.h"
#include "stemma/v1/run_config.pb.h"

namespace stemma {

// Returns what the tensor-parallel rank of each pipeline stage holds that holds most: heads and columns are cut evenly,
// and of the vocabulary the last rank has no fewer tokens than any other. REQUIRES: MakeModelShard accepts the mesh.
std::vector<ModelShard> StageShards(const ModelConfig& model, const v1::Mesh& mesh);

// Returns that of the stage that holds most parameters, of equal ones of the first.
ModelShard LargestShard(const ModelConfig& model, const v1::Mesh& mesh);

// Returns the run's head_chunk_tokens; kHeadChunkRows before a device has chosen them
// (server/planner/memory_division.h).
int64_t HeadChunkRows(const v1::RunConfig& run);

// Returns what the phases of the largest rank of a run depend on, if one pipeline stage had all layers.
ByteShape RankShape(const ModelConfig& model, const v1::RunConfig& run);

// Returns the same of each pipeline stage, whose layers are those of common/model/stage_layers.h.
std::vector<ByteShape> StageShapes(const ModelConfig& model, const v1::RunConfig& run);

}  // namespace stemma
