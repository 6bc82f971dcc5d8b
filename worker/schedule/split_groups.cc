#include "worker/schedule/split_groups.h"

#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/cost/cluster_facts.h"

namespace stemma::worker {
namespace {

// The checks of one cluster return what is wrong; empty: nothing.

std::string PeerProblem(const char* field, uint32_t peer, const RankSizes& sizes) {
  if (peer >= static_cast<uint32_t>(sizes.num_copies)) {
    return absl::StrCat(field, " is ", peer, ": there are ", sizes.num_copies, " copies of the model");
  }
  if (peer == static_cast<uint32_t>(sizes.copy))
    return absl::StrCat(field, " is ", peer, ": that is this rank's own copy");
  return "";
}

std::string RanksProblem(const v1::Cluster& cluster, const RankSizes& sizes) {
  if (cluster.dp_rank() != static_cast<uint32_t>(sizes.copy)) {
    return absl::StrCat("dp_rank is ", cluster.dp_rank(), ": this rank is of copy ", sizes.copy);
  }
  if (cluster.has_owner_rank() && cluster.helper_ranks_size() > 0) {
    return "it has an owner_rank and helper_ranks: it is either the owner's or a helper's";
  }
  if (cluster.has_owner_rank()) return PeerProblem("owner_rank", cluster.owner_rank(), sizes);
  for (int i = 0; i < cluster.helper_ranks_size(); ++i) {
    std::string problem = PeerProblem("helper_ranks", cluster.helper_ranks(i), sizes);
    if (!problem.empty()) return problem;
    if (i > 0 && cluster.helper_ranks(i) <= cluster.helper_ranks(i - 1)) {
      return absl::StrCat("helper_ranks has ", cluster.helper_ranks(i), " after ", cluster.helper_ranks(i - 1),
                          ": they ascend");
    }
  }
  return "";
}

std::string GroupProblem(const v1::Cluster& cluster, const RankSizes& sizes) {
  if (cluster.prefix_groups_size() != 1) {
    return absl::StrCat("prefix_groups has ", cluster.prefix_groups_size(), ": a split group has clusters of its own");
  }
  const uint32_t group = cluster.prefix_groups(0);
  if (group >= sizes.prefix_rows.size() || sizes.prefix_rows[group] < 1) {
    return absl::StrCat("prefix_groups has group ", group, ": not in the payload, or without a prefix");
  }
  if (cluster.waves_size() == 0) return "it has no waves: each rank of a split group computes some of its rollouts";
  std::set<uint32_t> rollouts;
  for (const v1::Wave& wave : cluster.waves()) {
    for (const v1::WaveMember& member : wave.members()) {
      if (member.group() != group)
        return absl::StrCat("a wave has group ", member.group(), ": it is group ", group, "'s");
      if (!rollouts.insert(member.rollout()).second) {
        return absl::StrCat("its waves have rollout ", member.rollout(), " twice");
      }
    }
  }
  return "";
}

// A helper has no tape of the prefix.
std::string TapeProblem(const v1::Cluster& cluster) {
  if (!cluster.has_owner_rank()) return "";
  if (cluster.prefix_policy() != v1::TAPE_POLICY_UNSPECIFIED) {
    return absl::StrCat("prefix_policy is ", v1::TapePolicy_Name(cluster.prefix_policy()), ": a helper has no tape");
  }
  if (cluster.prefix_block_rows() != 0) {
    return absl::StrCat("prefix_block_rows is ", cluster.prefix_block_rows(), ": a helper runs no prefix");
  }
  return cluster.offload_prefix() ? "offload_prefix is set: a helper has no tape" : "";
}

}  // namespace

absl::Status CheckSplitGroups(const v1::StepPlan& step, const RankSizes& sizes) {
  std::set<uint32_t> split, seen;
  for (int c = 0; c < step.clusters_size(); ++c) {
    const v1::Cluster& cluster = step.clusters(c);
    std::string problem;
    if (IsSplit(cluster)) {
      problem = RanksProblem(cluster, sizes);
      if (problem.empty()) problem = GroupProblem(cluster, sizes);
      if (problem.empty()) problem = TapeProblem(cluster);
      if (problem.empty()) split.insert(cluster.prefix_groups(0));
    }
    for (const uint32_t group : cluster.prefix_groups()) {
      const bool again = !seen.insert(group).second;
      if (again && split.contains(group) && problem.empty()) {
        problem = absl::StrCat("group ", group, " is split and has another cluster on this rank");
      }
    }
    if (!problem.empty()) return absl::InvalidArgumentError(absl::StrCat("the plan's cluster ", c, ": ", problem));
  }
  return absl::OkStatus();
}

}  // namespace stemma::worker
