#include "server/planner/log_prob_pass.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>

#include "common/cost/cluster_facts.h"
#include "common/cost/regather_bytes.h"
#include "server/planner/operation_work.h"

namespace stemma::server {
namespace {

// Tape policies and offload say nothing of a pass that keeps no tape, and which sweeps copies share is found anew.
v1::Cluster WithoutBackward(const v1::Cluster& of_step) {
  v1::Cluster cluster = of_step;
  cluster.clear_prefix_policy();
  cluster.clear_suffix_policy();
  cluster.clear_offload_prefix();
  cluster.clear_offload_headroom_bytes();
  cluster.clear_sweeps();
  return cluster;
}

// What one cluster of the pass takes; what it says is what a chooser of forward-only memory says of such a cluster.
class ForwardCluster {
 public:
  ForwardCluster(const MemoryOptions& options, const std::vector<PlannerGroup>& groups, const v1::Cluster& cluster)
      : options_(options), cluster_(cluster), operations_(groups, cluster, options.shape.cp, /*forward_only=*/true) {}

  MemoryChoice Memory() const {
    MemoryChoice choice;
    if (operations_.has_prefixes()) choice.way.prefix = operations_.prefix();
    for (const v1::Wave& wave : cluster_.waves()) choice.cut_waves += wave.cut_rows() ? 1 : 0;
    choice.wave_rows = options_.wave_rows;
    for (const size_t s : options_.candidate_stages()) RaiseToStage(options_.all_stages()[s], choice);
    choice.peak_bytes = std::max(choice.prefix_forward.peak(), choice.suffix.peak());
    if (operations_.has_prefixes()) choice.work.prefix_forward = operations_.Prefixes(options_.shape).forward;
    choice.work.suffix = SlowestSuffix();
    choice.seconds = Seconds(choice.work, options_.rates);
    return choice;
  }

 private:
  void RaiseToStage(const ByteShape& stage, MemoryChoice& choice) const {
    const PrefixShape& prefix = operations_.prefix();
    if (operations_.has_prefixes()) choice.prefix_forward.RaiseTo(ForwardPrefixBytes(stage, prefix));
    const int64_t kept_bytes = ForwardKeptBytes(stage, prefix);
    const BesideLayer beside = RegatherBytes(stage, prefix);
    for (const v1::Wave& wave : cluster_.waves()) {
      const WaveShape shape = operations_.ShapeOf(wave, operations_.MembersOf(wave));
      choice.suffix.RaiseTo({.hot_set = kept_bytes, .working_set = ForwardWaveBytes(stage, shape, beside)});
    }
  }

  // Returns the waves of the context-parallel rank that takes longest, of equally slow ones the first.
  Work SlowestSuffix() const {
    Work slowest;
    double slowest_s = -1;
    for (const std::vector<int>& waves : WavesByRank(cluster_, static_cast<int>(options_.shape.cp))) {
      Work work;
      for (const int w : waves) {
        work += operations_.Wave(options_.shape, operations_.MembersOf(cluster_.waves(w))).forward;
      }
      const double seconds = Seconds(work, options_.rates);
      if (seconds <= slowest_s) continue;
      slowest = work;
      slowest_s = seconds;
    }
    const Work regather = operations_.Regather(options_.shape).forward;
    for (int round = 0; round < RoundsOfWaves(cluster_, static_cast<int>(options_.shape.cp)); ++round) {
      slowest += regather;
    }
    return slowest;
  }

  const MemoryOptions& options_;
  const v1::Cluster& cluster_;
  const ClusterOperations operations_;
};

}  // namespace

PackedCluster ForwardOfStep(const MemoryOptions& options, const std::vector<PlannerGroup>& groups,
                            const v1::Cluster& of_step) {
  PackedCluster packed = {.cluster = WithoutBackward(of_step), .memory = {}};
  packed.memory = ForwardCluster(options, groups, packed.cluster).Memory();
  return packed;
}

std::vector<PackingGroup> PackingOf(const std::vector<PlannerGroup>& groups, const v1::Cluster& cluster) {
  std::map<uint32_t, PackingGroup> by_group;
  for (const v1::Wave& wave : cluster.waves()) {
    for (const v1::WaveMember& member : wave.members()) {
      by_group[member.group()].members.push_back(
          {member.rollout(), groups[member.group()].rollouts[member.rollout()].response_tokens});
    }
  }
  for (const uint32_t g : cluster.prefix_groups()) by_group[g].reuse = true;
  std::vector<PackingGroup> packing;
  for (auto& [g, group] : by_group) {
    group.group = g;
    group.uid = groups[g].uid;
    group.prefix_rows = groups[g].prompt_tokens - 1;
    group.borrowed = cluster.has_owner_rank();
    group.split = IsSplit(cluster);
    std::sort(group.members.begin(), group.members.end(),
              [](const PackingMember& a, const PackingMember& b) { return a.rollout < b.rollout; });
    packing.push_back(std::move(group));
  }
  return packing;
}

}  // namespace stemma::server
