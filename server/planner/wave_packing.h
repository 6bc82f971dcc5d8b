// Cuts the groups of one optimizer step into clusters and waves under the byte budget. Pure.
//
// Groups join a cluster, in their order, while its prefixes have no more rows than are worth packing. Where the
// budget keeps such a cluster from its fastest way, its halves are tried too, and theirs, down to single groups: the
// cut that is predicted to be the fastest is taken. The cuts do not depend on the budget, so a larger one never costs
// seconds.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/planner/memory_chooser.h"
#include "stemma/v1/plan.pb.h"

namespace stemma::server {

struct PackingMember {
  uint32_t rollout = 0;  // index in its group
  int64_t rows = 0;      // R
};

struct PackingGroup {
  uint32_t group = 0;  // index in the payload
  std::string uid;
  int64_t prefix_rows = 0;  // P - 1
  bool reuse = false;
  std::vector<PackingMember> members;  // not empty
  bool borrowed = false;               // a part of a split group whose prefix another rank computes: packed alone
  bool split = false;                  // a part of a split group, borrowed or not
};

struct PackedCluster {
  v1::Cluster cluster;
  MemoryChoice memory;
};

// One group alone, by reuse or dense, whatever its `reuse` says.
ClusterShape GroupShape(const PackingGroup& group, bool reuse);

// Errors: ResourceExhausted GROUP_TOO_LARGE, Cancelled - see MakePlan.
absl::StatusOr<std::vector<PackedCluster>> PackClusters(MemoryChooser& chooser,
                                                        const std::vector<PackingGroup>& groups);

}  // namespace stemma::server
