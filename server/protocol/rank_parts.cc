#include "server/protocol/rank_parts.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "glog/logging.h"

namespace stemma::server {
namespace {

// The ranks on which each group of the request runs in this step, ascending. Finds them in one walk over the step.
class RanksOfGroups {
 public:
  explicit RanksOfGroups(const v1::StepPlan& step) {
    uint32_t num_groups = 0;
    for (const uint32_t group : step.groups()) num_groups = std::max(num_groups, group + 1);
    ranks_.resize(num_groups);
    for (const v1::Cluster& cluster : step.clusters()) {
      for (const v1::Wave& wave : cluster.waves()) {
        for (const v1::WaveMember& member : wave.members()) {
          CHECK_LT(member.group(), num_groups) << "a wave runs a group that its step does not have";
          Add(cluster.dp_rank(), ranks_[member.group()]);
        }
      }
    }
    for (Ranks& ranks : ranks_) {
      if (ranks.empty()) ranks.push_back(0);  // nothing of it runs
    }
  }

  // One of most groups, several of one that is split.
  using Ranks = absl::InlinedVector<uint32_t, 2>;
  const Ranks& operator[](uint32_t group) const { return ranks_[group]; }

 private:
  static void Add(uint32_t rank, Ranks& ranks) {
    const auto at = std::lower_bound(ranks.begin(), ranks.end(), rank);
    if (at == ranks.end() || *at != rank) ranks.insert(at, rank);
  }

  std::vector<Ranks> ranks_;
};

std::vector<v1::StepPlan> DealPlan(v1::StepPlan step, const RanksOfGroups& ranks, uint32_t num_ranks) {
  std::vector<v1::StepPlan> parts(num_ranks);
  for (v1::StepPlan& part : parts) {
    part.set_epoch(step.epoch());
    part.set_reduce_gradients_once(step.reduce_gradients_once());
  }
  for (v1::Cluster& cluster : *step.mutable_clusters()) {
    const uint32_t rank = cluster.dp_rank();
    *parts.at(rank).add_clusters() = std::move(cluster);
  }
  for (v1::CopyStages& copy : *step.mutable_copies()) *parts.at(copy.dp_rank()).add_copies() = std::move(copy);
  for (const uint32_t group : step.groups()) {
    for (const uint32_t rank : ranks[group]) parts[rank].add_groups(group);
  }
  return parts;
}

}  // namespace

std::vector<v1::StepPlan> PlansOfRanks(v1::StepPlan step, uint32_t num_ranks) {
  if (num_ranks == 1) return {std::move(step)};
  const RanksOfGroups ranks(step);
  return DealPlan(std::move(step), ranks, num_ranks);
}

std::vector<std::vector<uint32_t>> PayloadGroupsOfRanks(const v1::Plan& plan, uint32_t num_groups, uint32_t num_ranks) {
  std::vector<std::vector<uint32_t>> groups(num_ranks);
  if (num_ranks == 1) {
    groups[0].resize(num_groups);
    std::iota(groups[0].begin(), groups[0].end(), 0);
    return groups;
  }
  const auto add = [&](const v1::StepPlan& step) {
    const RanksOfGroups ranks(step);
    for (const uint32_t group : step.groups()) {
      for (const uint32_t rank : ranks[group]) groups[rank].push_back(group);
    }
  };
  for (const v1::StepPlan& step : plan.steps()) add(step);
  if (plan.has_log_prob_pass()) add(plan.log_prob_pass());
  for (std::vector<uint32_t>& of_rank : groups) {
    std::sort(of_rank.begin(), of_rank.end());
    of_rank.erase(std::unique(of_rank.begin(), of_rank.end()), of_rank.end());
  }
  return groups;
}

std::vector<internal::v1::Prepare> PreparesOfRanks(internal::v1::Prepare whole, uint32_t num_ranks,
                                                   const std::vector<int64_t>& num_rollouts) {
  std::vector<internal::v1::Prepare> prepares(num_ranks);
  if (num_ranks == 1) {
    prepares[0] = std::move(whole);
    return prepares;
  }
  v1::StepPlan step = std::move(*whole.mutable_plan());
  const bool has_pass = whole.has_log_prob_pass();
  std::vector<v1::StepPlan> passes = PlansOfRanks(std::move(*whole.mutable_log_prob_pass()), num_ranks);
  whole.clear_plan();
  whole.clear_log_prob_pass();
  std::vector<double> weights(whole.rollout_weights().begin(), whole.rollout_weights().end());
  if (weights.size() > 1) whole.clear_rollout_weights();

  std::fill(prepares.begin(), prepares.end(), whole);
  const RanksOfGroups ranks(step);
  if (weights.size() > 1) {
    auto next = weights.begin();
    for (const uint32_t group : step.groups()) {
      const auto end = next + num_rollouts.at(group);
      CHECK(end <= weights.end());
      for (const uint32_t rank : ranks[group]) prepares[rank].mutable_rollout_weights()->Add(next, end);
      next = end;
    }
    CHECK(next == weights.end());
  }
  std::vector<v1::StepPlan> plans = DealPlan(std::move(step), ranks, num_ranks);
  for (uint32_t rank = 0; rank < num_ranks; ++rank) {
    *prepares[rank].mutable_plan() = std::move(plans[rank]);
    if (has_pass) *prepares[rank].mutable_log_prob_pass() = std::move(passes[rank]);
  }
  return prepares;
}

}  // namespace stemma::server
