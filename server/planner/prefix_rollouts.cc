#include "server/planner/prefix_rollouts.h"

#include <cstdint>

#include "absl/container/flat_hash_map.h"

namespace stemma::server {

void SetPrefixRollouts(v1::StepPlan& step) {
  absl::flat_hash_map<uint32_t, uint32_t> rollouts;  // by group
  for (const v1::Cluster& cluster : step.clusters()) {
    for (const v1::Wave& wave : cluster.waves()) {
      for (const v1::WaveMember& member : wave.members()) ++rollouts[member.group()];
    }
  }
  for (v1::Cluster& cluster : *step.mutable_clusters()) {
    cluster.clear_prefix_rollouts();
    for (const uint32_t group : cluster.prefix_groups()) cluster.add_prefix_rollouts(rollouts[group]);
  }
}

}  // namespace stemma::server
