// When each rank ends a step in which some groups are split: every rank does its groups in order, and where ranks share
// one, they wait for each other. Pure.
//
// The owner of a split group runs Phase A, sends K and V to one helper after the other, runs its waves, takes gK and gV
// from one helper after the other, and runs Phase C. A helper waits for K and V, runs its waves, and waits until its
// gradients are taken. Sending and receiving end together on both ranks. All ranks have the split groups in one order,
// so that nobody waits in a circle, and what ranks do can be followed group by group.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
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

// The seconds of the groups that ranks compute whole, by place: before the rank takes part in the shared group of that
// index, or, at one more place, the last, after all of them. A rank has something to do at few places of many.
class WholeWork {
 public:
  explicit WholeWork(size_t ranks) : of_ranks_(ranks) {}
  WholeWork(std::initializer_list<std::vector<double>> by_rank_and_place);

  void Add(size_t rank, size_t place, double seconds);

  size_t num_ranks() const { return of_ranks_.size(); }

  struct Entry {
    size_t place = 0;
    double seconds = 0;
  };
  const std::vector<Entry>& of_rank(size_t rank) const { return of_ranks_[rank]; }  // by ascending places

 private:
  std::vector<std::vector<Entry>> of_ranks_;
};

// Follows all ranks to their ends. Groups at the place of a shared group that the rank has no part in come before its
// next part. Its cost grows with ranks, parts and entries of `whole`, not with the shared groups that a rank skips.
Timeline RunTimeline(std::span<const SharedGroup> shared, const WholeWork& whole);

// Takes one shared group into account: `clock_s` and `exchange_s` are each rank's, before and after.
void RunShared(const SharedGroup& group, std::vector<double>& clock_s, std::vector<double>& exchange_s);

}  // namespace stemma::server
