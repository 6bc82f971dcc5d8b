// Which meshes can hold a model: how its heads, FFN columns and vocabulary can be cut over ranks. Pure. Used by the
// server before it starts, and by MakeModelShard().
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/model/model_config.h"
#include "stemma/v1/run_config.pb.h"

namespace stemma {

// Returns every reason why so many tensor-parallel ranks, in so many sets with experts of their own, cannot share the
// model's layers, each with the axis, the model's number and what to do; none: they can. Attention heads and FFN
// columns are cut evenly, experts dealt evenly. K/V heads are cut evenly, too, or each is held by the same number of
// ranks; of the vocabulary every rank has a token at least.
std::vector<std::string> TensorParallelProblems(const ModelConfig& config, int64_t tp_size, int64_t ep_size = 1);

// Returns every reason why the model's layers cannot be dealt to so many stages; none: they can. Every stage has a
// layer.
std::vector<std::string> PipelineProblems(const ModelConfig& config, int64_t pp_size);

// Returns the best mesh that can hold the model, with no more ranks and no more stages than `mesh`. Better are, in this
// order: more ranks, a tp nearer to the one asked for, more stages, a smaller tp. Its ep is the largest up to the one
// asked for with which its tp can be, its cp the largest that divides the cp asked for and the ranks that are left.
v1::Mesh NearestMesh(const ModelConfig& config, const v1::Mesh& mesh);

// Errors: InvalidArgument - the mesh cannot hold the model: every reason, and the nearest mesh that can.
absl::Status CheckMesh(const ModelConfig& config, const v1::Mesh& mesh);

}  // namespace stemma
