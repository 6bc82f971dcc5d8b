// What the votes of all ranks on one step say together. Pure. The rule of each number stands beside its field in
// proto/stemma/internal/v1/worker.proto.
#pragma once

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "common/base/mesh.h"
#include "common/model/model_config.h"
#include "stemma/internal/v1/worker.pb.h"

namespace stemma::server {

// Merges one vote of each rank, in their order, which is also the order of sums. Yes where all say yes. A no is the
// first rank's that has a reason of its own, and names the rank where there are several. REQUIRES: one vote or more, of
// one step.
internal::v1::Vote MergeVotes(std::span<const internal::v1::Vote> votes);

// Checks a rank's vote on a step that goes on. Errors: InvalidArgument - it says CANCELLED, although an Abort ends the
// step and no vote on it counts any more; or it tells what the ranks of its copy computed together, although the first
// of them does, and it would count twice; or as of CheckExpertLoad: names the field.
absl::Status CheckVote(const v1::Mesh& mesh, const ModelConfig& model, uint32_t rank, const internal::v1::Vote& vote);

}  // namespace stemma::server
