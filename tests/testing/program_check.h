// Runs the programs of all ranks of a step against each other, without tensors: what would hang or mix up tensors on
// ranks is found here. Pure.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "tests/testing/namespaces.h"
#include "worker/schedule/operation.h"

namespace stemma::testing {

// What a rank holds at once at most.
struct ProgramPeaks {
  int live_waves = 0;     // forward ran, backward did not
  int live_clusters = 0;  // Phase A ran, Phase C did not
};

// Runs the programs of all ranks of a step against each other. Answers each rank's peaks. Errors: InvalidArgument -
//   order: a wave runs before its cluster's Phase A, a backward without its forward's tape, a Phase C before the last
//     backward of its cluster, or an operation twice
//   tapes: a forward whose tape nobody consumes, a Phase A without a Phase C (unless forward_only)
//   split groups: a helper that runs Phase A or C of its cluster, K/V that are sent before they are there, gK/gV that
//     are sent before the last backward, twice or never, or that come after Phase C
//   stages: a message that is received in another operation than it is sent for, or by nobody
//   exchanges: a rank that is in none of its ranks, ranks that meet with different tensors or bytes, or wait for ever
//   together: context-parallel ranks that meet in different operations
// and names rank, place and operation. `ranks`: by the numbers that exchanges name.
absl::StatusOr<std::vector<ProgramPeaks>> CheckPrograms(const std::vector<Program>& ranks, bool forward_only);

}  // namespace stemma::testing
