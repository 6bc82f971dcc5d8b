// When each rank ends a step in which some groups are split: every rank does its groups in order, and where ranks share
// one, they wait for each other. Pure.
//
// The owner of a split group runs Phase A, sends K and V to one helper after the other, runs its waves, takes gK and gV
// from one helper after the other, and runs Phase C. A helper waits for K and V, runs its waves, and waits until its
// gradients are taken. Sending and receiving end together on both ranks. All ranks have the split groups in one order,
// so that nobody waits in a circle, and what ranks do can be followed group by group.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace stemma::server {

struct SharedGroup {
  std::vector<int32_t> ranks;   // the owner first, then the helpers, ascending
  std::vector<double> waves_s;  // Phase B of each rank's part
  double forward_s = 0;         // Phase A
  double backward_s = 0;        // Phase C
  double send_s = 0;            // K and V to one helper
  double return_s = 0;          // gK and gV of one helper
  bool returns = true;          // they come; in a pass without backward nobody waits for them
};

// By rank.
struct Timeline {
  std::vector<double> finish_s;
  std::vector<double> exchange_s;  // of those: sending, receiving, and waiting for the others

  double max_s() const;
};

// `whole_s`: by rank and place, the seconds of the groups that the rank computes whole before it takes part in the
// shared group of that index; one more place, the last, for those after all. What stands before a group that the rank
// has no part in comes before its next.
Timeline RunTimeline(std::span<const SharedGroup> shared, const std::vector<std::vector<double>>& whole_s);

// Takes one shared group into account: `clock_s` and `exchange_s` are each rank's, before and after.
void RunShared(const SharedGroup& group, std::vector<double>& clock_s, std::vector<double>& exchange_s);

}  // namespace stemma::server
