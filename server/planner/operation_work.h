// What the operations of one cluster of a plan cost on one stage: Phases A and C of its prefixes, forward and backward
// of a wave. Read from clusters as the worker gets them. Pure; the planner's stage orders and the simulator count by
// it.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/cost/cluster_facts.h"
#include "common/cost/prefix_bytes.h"
#include "common/cost/wave_bytes.h"
#include "server/planner/cost_model.h"
#include "server/planner/planner.h"
#include "stemma/v1/plan.pb.h"

namespace stemma::server {

// Phases A and C; a pass without backward has no C.
struct PrefixWork {
  Work forward, backward;
};

// A wave's forward, and that with its backward, which a pass without backward does not have.
struct WaveWork {
  Work forward, both;
};

class ClusterOperations {
 public:
  // `groups`: the request's. They and the cluster outlive it. `cp`: ranks that share the cluster.
  ClusterOperations(const std::vector<PlannerGroup>& groups, const v1::Cluster& cluster, int64_t cp, bool forward_only);

  const PrefixShape& prefix() const { return prefix_; }
  // Tells whether Phases A and C run here.
  bool has_prefixes() const { return RunsOwnPrefix(cluster_); }
  // Returns the members of a wave, as a cluster of their own.
  ClusterShape MembersOf(const v1::Wave& wave) const;
  WaveShape ShapeOf(const v1::Wave& wave, const ClusterShape& members) const;

  // Returns Phases A and C on a stage; of context-parallel ranks, those of the one that has most.
  PrefixWork Prefixes(const ByteShape& stage) const;
  // Returns a wave on a stage, without what gathering the prefixes again takes.
  WaveWork Wave(const ByteShape& stage, const ClusterShape& members) const;
  // Returns what gathering the prefixes again takes in a round of waves; 0 where each rank holds them.
  WaveWork Regather(const ByteShape& stage) const;

 private:
  MemberShape MemberOf(const v1::WaveMember& member, bool is_cut) const;

  const std::vector<PlannerGroup>& groups_;
  const v1::Cluster& cluster_;
  const int64_t cp_;
  const bool forward_only_;
  ClusterShape prefixes_;
  PrefixShape prefix_;
  absl::flat_hash_map<uint32_t, int64_t> places_;  // of groups among the prefixes
};

}  // namespace stemma::server
