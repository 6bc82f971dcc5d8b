// Places the groups of one mini-batch on the dp ranks, so that the ranks finish together. Pure.
//
// A group is computed whole by one rank, so its prefix is charged once: it costs its prefix's seconds and the sum of
// its suffixes'. The most expensive group goes first, each to the rank with the least to do (LPT); where the result is
// not close to the lower bound, ranks then exchange groups. The same groups and ranks give the same placement, bit for
// bit.
//
// A placement belongs to a mini-batch: mini-batches are formed first, and the group of several epochs is placed anew in
// each. What an earlier pass left on a group's rank, such as its entry log-probs, is found there by a later one only if
// the group is pinned: the earlier placement's rank is then the `pinned_rank` of the later one.
//
// Invariants:
//  (1) every group has one rank; a pinned one has the rank it is pinned to. Ranks may be empty.
//  (2) the fullest rank has no more to do than by LPT alone: at most 4/3 - 1/(3 ranks) times the least possible if no
//      group is pinned, and 2 - 1/ranks times if some are.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace stemma::server {

inline constexpr int32_t kNotPinned = -1;

// What a group costs in the way that it is computed. Seconds are finite and not negative.
struct PlacementGroup {
  double prefix_s = 0;    // Phases A and C; 0 where the group is computed dense
  double suffixes_s = 0;  // Phase B of all its rollouts
  int32_t pinned_rank = kNotPinned;

  double total_s() const { return prefix_s + suffixes_s; }
};

struct Placement {
  std::vector<int32_t> ranks;   // of each group, in the order given
  std::vector<double> loads_s;  // of each rank: its groups, added in that order
  // No placement of whole groups has a rank with less than this to do: the mean, the most expensive group, or what is
  // pinned to one rank, whichever is most.
  double bound_s = 0;

  double max_s() const;
  // The fullest rank over the mean: what waiting costs. 1 where there is nothing to do.
  double imbalance() const;
  // The fullest rank over the bound, less 1: what a better placement could win at most. 0 where there is nothing to do.
  double over_bound() const;
};

// `ranks` is at least 1.
Placement PlaceGroups(std::span<const PlacementGroup> groups, int32_t ranks);

}  // namespace stemma::server
