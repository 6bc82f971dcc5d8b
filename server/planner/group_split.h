// Which groups of a mini-batch are split over ranks, who owns them and who helps, which rollouts go where, and in what
// order every rank does what it has. Pure; whole groups are placed around the split ones by PlaceGroups.
//
// A hot group, one that takes a rank longer than the mean of all, leaves the others waiting. Split, its prefix is still
// computed once: the owner sends K and V and takes gK and gV back (server/planner/split_timeline.h). Rollouts go, the
// most expensive first, to the rank that would end its part first, Phase A and sending included; a helper has groups of
// its own to do while the owner runs Phases A and C. Two ways are tried and the better one taken: one group after the
// other over the ranks that have least to do by then, and each over ranks of its own (server/planner/split_teams.h),
// which alone is good where there are more ranks than groups. What is found is improved by moving rollouts and whole
// groups while the slowest rank ends sooner.
//
// Invariants:
//  (1) a group is whole on one rank, or split: then each of its rollouts is in one part, no part is empty, and no rank
//      has two. A pinned group is never split, and a pinned split is as it was pinned.
//  (2) every rank has the split groups in the same order.
//  (3) with SPLIT_AUTO the slowest rank ends more than kWorthSplitting sooner than by whole groups, or none is split.
//  (4) the same input gives the same answer, bit for bit.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "server/planner/placement.h"
#include "server/planner/split_timeline.h"
#include "stemma/v1/plan.pb.h"
#include "stemma/v1/run_config.pb.h"

namespace stemma::server {

inline constexpr double kWorthSplitting = 0.02;  // of the slowest rank's seconds: the model is off by as much

// What a group costs in parts.
struct SplitCosts {
  double forward_s = 0, backward_s = 0;  // Phases A and C
  std::vector<double> rollouts_s = {};   // Phase B of each
  double part_s = 0;                     // what Phase B takes more for each part but one: waves that are less full
  double send_s = 0, return_s = 0;       // K/V to one helper, and its gK/gV back
  bool returns = true;                   // gK/gV come back; in a pass without backward nothing does
};

struct GroupSplit {
  size_t group = 0;
  std::vector<int32_t> ranks;                   // the owner first, then the helpers, ascending
  std::vector<std::vector<uint32_t>> rollouts;  // of each of them, ascending, places in SplitCosts::rollouts_s

  // Returns the place in `ranks`; nullopt: the rank has no part.
  std::optional<size_t> PartOfRank(size_t rank) const;
};

// Says of a cluster of a rank that has a part which other ranks have theirs.
void MarkSplit(const GroupSplit& split, size_t rank, v1::Cluster& cluster);

struct SplitRequest {
  std::span<const PlacementGroup> groups = {};
  std::vector<bool> may_split = {};     // of each group; empty: none
  std::vector<GroupSplit> pinned = {};  // how an earlier pass split groups of these
  int32_t ranks = 1;
  v1::Split mode = v1::SPLIT_OFF;
  std::function<SplitCosts(size_t group)> costs = {};  // asked of groups that are split or may be, each once
};

struct SplitPlacement {
  std::vector<GroupSplit> splits = {};   // in the order in which all ranks have them
  std::vector<SharedGroup> shared = {};  // what they cost
  // By rank and place: the groups that it computes whole before it takes part in the split of that index, or after all.
  std::vector<std::vector<std::vector<size_t>>> whole = {};
  std::vector<double> finish_s = {};    // of each rank
  std::vector<double> exchange_s = {};  // of those: sending, receiving, waiting for others
  double mean_s = 0;                    // what all groups cost, over the ranks
  double bound_s = 0;                   // the slowest rank has no less with these groups split, and the others whole
  double whole_max_s = 0;               // the slowest rank's seconds if no group were split

  double max_s() const;
  double imbalance() const;        // the slowest rank over the mean; 1 where there is nothing to do
  double imbalance_whole() const;  // the same if no group were split
  double over_bound() const;
};

SplitPlacement PlaceAndSplit(const SplitRequest& request);

}  // namespace stemma::server
