// What the votes of all ranks on one step say together. Pure. The rule of each number stands beside its field in
// proto/stemma/internal/v1/worker.proto.
#pragma once

#include <span>

#include "stemma/internal/v1/worker.pb.h"

namespace stemma::server {

// Merges one vote of each rank, in their order, which is also the order of sums. Yes where all say yes. A no is the
// first rank's that has a reason of its own, and names the rank where there are several. REQUIRES: one vote or more, of
// one step.
internal::v1::Vote MergeVotes(std::span<const internal::v1::Vote> votes);

}  // namespace stemma::server
