// The ways in which a cluster's prefixes may be computed: policy, offload, block rows, and of context-parallel ranks
// how they keep K/V. Read by ClusterWays. Pure.
//
// Those that keep more come first; of one policy and offload the whole prefix comes before its blocks.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "server/planner/memory_choice.h"

namespace stemma::server {

// Counts the policies with and without offload, each with every number of block rows and none. Lists of this size need
// no memory of the heap; those of context-parallel ranks are twice as long.
inline constexpr size_t kPrefixWays = 11 * 8;

using PrefixWayList = absl::InlinedVector<PrefixWay, kPrefixWays>;

// Returns what the run configuration allows for prefixes of so many rows; of none, one way. `split`: copies of the
// model share the cluster's groups.
PrefixWayList PrefixWays(const MemoryOptions& options, int64_t rows, bool split);

}  // namespace stemma::server
