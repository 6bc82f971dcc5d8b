// Cuts one group after the other into parts for the ranks that share it, and puts the groups that ranks compute whole
// between the parts. Pure; see server/planner/group_split.h.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "server/planner/group_split.h"

namespace stemma::server {

// A group that may be split: what it costs, and in what order its rollouts are dealt.
class GroupToSplit {
 public:
  explicit GroupToSplit(SplitCosts costs);

  const SplitCosts& costs() const { return costs_; }
  // Returns the rollouts, the most expensive first, equally expensive ones in their order.
  const std::vector<uint32_t>& by_cost() const { return by_cost_; }

 private:
  SplitCosts costs_;
  std::vector<uint32_t> by_cost_;
};

// Returns what a split group costs its ranks.
SharedGroup SharedOf(const GroupSplit& split, const SplitCosts& costs);

class PartsBuilder {
 public:
  // `work_s`: of all groups of the mini-batch.
  PartsBuilder(size_t ranks, double work_s);

  // Counts a group that the rank computes whole, whatever is split.
  void AddPinned(int32_t rank, double seconds) { pinned_s_[static_cast<size_t>(rank)] += seconds; }

  // Returns the parts after which the step is expected to end first, of few helpers where more are not better; `most`:
  // as many parts as there are ranks and rollouts. The group is the caller's to name. nullopt: it has one rollout, or
  // there is one rank.
  std::optional<GroupSplit> Cut(const GroupToSplit& group, bool most) const;

  // Counts a group that is split so.
  SharedGroup Add(const GroupSplit& split, const SplitCosts& costs);

  // Returns the seconds of each rank for the groups that were added, without waiting.
  const std::vector<double>& busy_s() const { return busy_s_; }

 private:
  struct Dealt {
    std::vector<int32_t> ranks;     // of the parts
    std::vector<uint32_t> part_of;  // of each rollout
    double end_s = 0;
  };
  Dealt Deal(const GroupToSplit& group, std::vector<int32_t> ranks) const;
  double Load(int32_t rank) const;

  std::vector<double> pinned_s_, busy_s_, clock_s_, waiting_s_;
  double work_s_ = 0;  // of all groups, with what splitting adds
};

// Puts all groups that each rank computes whole at their places (see SplitPlacement::whole): as many as fit into the
// time in which it would wait for the owner of a group that it helps with, the most expensive first, and the others
// after all.
std::vector<std::vector<std::vector<size_t>>> OrderAround(std::span<const PlacementGroup> groups,
                                                          std::span<const SharedGroup> shared,
                                                          std::vector<std::vector<size_t>> of_ranks);

// Returns the seconds of each rank's groups by place.
WholeWork WholeSeconds(std::span<const PlacementGroup> groups,
                       const std::vector<std::vector<std::vector<size_t>>>& whole);

}  // namespace stemma::server
