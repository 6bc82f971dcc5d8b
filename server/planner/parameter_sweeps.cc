#include "server/planner/parameter_sweeps.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "common/cost/cluster_facts.h"
#include "glog/logging.h"

namespace stemma::server {
namespace {

std::optional<uint32_t> SplitGroupOf(const v1::Cluster& cluster) {
  return IsSplit(cluster) ? std::optional(cluster.prefix_groups(0)) : std::nullopt;
}

// The clusters of one copy, of which the first ones have their places.
class CopyClusters {
 public:
  void Add(v1::Cluster cluster) { clusters_.push_back(std::move(cluster)); }

  // Returns the split group that comes next.
  std::optional<uint32_t> NextSplit() const {
    for (size_t i = next_; i < clusters_.size(); ++i) {
      if (const auto group = SplitGroupOf(clusters_[i])) return group;
    }
    return std::nullopt;
  }
  bool Has(uint32_t split_group) const {
    return std::any_of(clusters_.begin() + static_cast<std::ptrdiff_t>(next_), clusters_.end(),
                       [&](const v1::Cluster& cluster) { return SplitGroupOf(cluster) == split_group; });
  }
  // Returns how many clusters stand before the next split group, or the end.
  size_t NumBefore() const {
    size_t number = 0;
    while (next_ + number < clusters_.size() && !SplitGroupOf(clusters_[next_ + number])) ++number;
    return number;
  }
  v1::Cluster Take() { return std::move(clusters_[next_++]); }

 private:
  std::vector<v1::Cluster> clusters_;
  size_t next_ = 0;
};

class SweepPlaces {
 public:
  SweepPlaces(const std::vector<int64_t>& prefix_rows, const SweepRanks& ranks, v1::StepPlan& step)
      : prefix_rows_(prefix_rows), ranks_(ranks), step_(step), copies_(ranks.copies), placed_(ranks.copies) {
    for (v1::Cluster& cluster : *step.mutable_clusters()) copies_.at(cluster.dp_rank()).Add(std::move(cluster));
    step.clear_clusters();
  }

  void Run() {
    while (const std::optional<uint32_t> group = NextSplit()) {
      std::vector<bool> has(copies_.size());
      size_t before = 0;
      for (size_t copy = 0; copy < copies_.size(); ++copy) {
        has[copy] = copies_[copy].Has(*group);
        if (has[copy]) before = std::max(before, copies_[copy].NumBefore());
      }
      for (; before > 0; --before) {
        Place([](const CopyClusters& copy) { return copy.NumBefore() > 0; });
      }
      Place([&](const CopyClusters& copy) { return copy.NumBefore() == 0 && copy.NextSplit() == group; });
    }
    const auto left = [](const CopyClusters& copy) { return copy.NumBefore() > 0; };
    while (std::any_of(copies_.begin(), copies_.end(), left)) Place(left);
    for (std::vector<v1::Cluster>& clusters : placed_) {
      for (v1::Cluster& cluster : clusters) *step_.add_clusters() = std::move(cluster);
    }
  }

 private:
  // Returns a split group that comes next in every copy that has it.
  std::optional<uint32_t> NextSplit() const {
    bool any = false;
    for (const CopyClusters& copy : copies_) {
      const std::optional<uint32_t> group = copy.NextSplit();
      if (!group) continue;
      any = true;
      const auto waits = [&](const CopyClusters& other) { return other.Has(*group) && other.NextSplit() != group; };
      if (std::none_of(copies_.begin(), copies_.end(), waits)) return group;
    }
    CHECK(!any) << "split groups stand in different orders";
    return std::nullopt;
  }

  // Gives the next place to the next clusters of the copies for which `takes` is true.
  template <typename Takes>
  void Place(const Takes& takes) {
    v1::ParameterSweeps sweeps;
    for (uint32_t copy = 0; copy < copies_.size(); ++copy) {
      v1::Cluster cluster;
      cluster.set_dp_rank(copy);
      if (takes(copies_[copy])) cluster = copies_[copy].Take();
      Raise(cluster, sweeps);
      placed_[copy].push_back(std::move(cluster));
    }
    for (std::vector<v1::Cluster>& clusters : placed_) *clusters.back().mutable_sweeps() = sweeps;
  }

  void Raise(const v1::Cluster& cluster, v1::ParameterSweeps& sweeps) const {
    if (RunsOwnPrefix(cluster)) {
      const auto blocks = static_cast<uint32_t>(NumPrefixBlocks(cluster, prefix_rows_));
      sweeps.set_prefix_blocks(std::max(sweeps.prefix_blocks(), blocks));
      sweeps.set_prefix_again(sweeps.prefix_again() || cluster.prefix_policy() == v1::S5);
    }
    const int rounds = RoundsOfWaves(cluster, static_cast<int>(ranks_.cp_ranks));
    sweeps.set_rounds(std::max(sweeps.rounds(), static_cast<uint32_t>(rounds)));
  }

  const std::vector<int64_t>& prefix_rows_;
  const SweepRanks& ranks_;
  v1::StepPlan& step_;
  std::vector<CopyClusters> copies_;
  std::vector<std::vector<v1::Cluster>> placed_;  // by copy
};

}  // namespace

void ShareSweeps(const std::vector<int64_t>& prefix_rows, const SweepRanks& ranks, v1::StepPlan& step) {
  SweepPlaces(prefix_rows, ranks, step).Run();
}

}  // namespace stemma::server
