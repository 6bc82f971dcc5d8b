// The rows of a wave of a plan. Pure: sizes in, indices out.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "stemma/v1/plan.pb.h"

namespace stemma::worker {

// Sizes of the payload's groups.
struct GroupShape {
  int64_t prompt_tokens = 0;             // P
  std::vector<int64_t> response_tokens;  // R of each rollout
};

// The rows of one member in its wave. A suffix runs the last prompt token and the response but its last token; a whole
// trajectory also the tokens before, of which the last layer computes K and V only.
struct MemberRows {
  uint32_t group = 0, rollout = 0;
  int64_t begin = 0, end = 0;  // all its rows
  int64_t prefix = -1;         // index in the cluster's prefix_groups; -1: a whole trajectory, or P = 1
  int64_t kv_only_rows = 0;    // 0 for a suffix, P - 1 for a whole trajectory
  int64_t first_position = 0;  // of row `begin`
  int64_t suffix_begin = 0;    // of row `begin`, or the first that is not kv-only, in its suffix: 0 but of a cut one
  int64_t head_begin = 0;      // its first row among the rows that reach the head
};

// Errors: InvalidArgument - the plan names a group, rollout or prefix that the payload does not have.
absl::StatusOr<std::vector<MemberRows>> WaveRows(const std::vector<GroupShape>& groups, const v1::Cluster& cluster,
                                                 const v1::Wave& wave);

// Errors: InvalidArgument - these are the members of a wave that is to be cut by rows, and it cannot be: it is not one
// suffix of two rows for each context-parallel rank.
absl::Status CheckCutRows(const std::vector<MemberRows>& members, int64_t ranks);

// Returns what a context-parallel rank runs of a wave of these members: all, or, where it is cut by rows, the rank's
// pieces of the one suffix, which ranks share as they share the rows of a prefix (common/cost/context_rows.h).
std::vector<MemberRows> RowsOfRank(const v1::Wave& wave, const std::vector<MemberRows>& members, int64_t rank,
                                   int64_t ranks);

}  // namespace stemma::worker
