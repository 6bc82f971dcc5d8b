#include "server/planner/placement.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <numeric>
#include <queue>
#include <set>
#include <tuple>
#include <utility>

#include "glog/logging.h"

namespace stemma::server {
namespace {

// Ranks exchange groups until the fullest is so close to the bound. The cost model is off by more than that.
constexpr double kCloseEnough = 5e-4;
// Bounds what the exchanges cost: so many for each rank on average, each between the fullest rank and one of so many of
// the emptiest.
constexpr int64_t kExchangesPerRank = 8;
constexpr int64_t kPartners = 8;
// A gain below this part of the load is rounding.
constexpr double kLeastGain = 1e-12;

class Placer {
 public:
  Placer(std::span<const PlacementGroup> groups, int32_t ranks)
      : groups_(groups), loads_(static_cast<size_t>(ranks)), movable_(loads_.size()), ranks_(groups.size()) {
    for (const PlacementGroup& group : groups) costs_.push_back(group.total_s());
  }

  Placement Place() {
    PlacePinned();
    const double bound = Bound();
    PlaceLargestFirst();
    Exchange((1 + kCloseEnough) * bound);
    Placement placement = {.ranks = std::move(ranks_), .loads_s = std::vector<double>(loads_.size()), .bound_s = bound};
    for (size_t g = 0; g < groups_.size(); ++g) placement.loads_s[Rank(placement.ranks[g])] += Cost(g);
    return placement;
  }

 private:
  // Groups given from the fullest rank for at most one of another: places among movable_, the latter's size for none.
  struct Swap {
    size_t given = 0, taken = 0;
    double gain = 0;  // by so much the larger of the two loads falls
  };

  static size_t Rank(int32_t rank) { return static_cast<size_t>(rank); }
  double Cost(size_t group) const { return costs_[group]; }

  // Equally expensive groups keep their order.
  bool MoreExpensive(size_t a, size_t b) const { return Cost(a) != Cost(b) ? Cost(a) > Cost(b) : a < b; }

  void PlacePinned() {
    for (size_t g = 0; g < groups_.size(); ++g) {
      const int32_t rank = groups_[g].pinned_rank;
      CHECK(std::isfinite(Cost(g)) && Cost(g) >= 0) << "group " << g << " costs " << Cost(g) << " s";
      if (rank == kNotPinned) continue;
      CHECK(rank >= 0 && Rank(rank) < loads_.size()) << "group " << g << " is pinned to rank " << rank;
      ranks_[g] = rank;
      loads_[Rank(rank)] += Cost(g);
    }
  }

  // Asked while only pinned groups are placed.
  double Bound() const {
    double sum = 0, largest = 0;
    for (size_t g = 0; g < groups_.size(); ++g) {
      sum += Cost(g);
      largest = std::max(largest, Cost(g));
    }
    const double pinned = *std::max_element(loads_.begin(), loads_.end());
    return std::max({sum / static_cast<double>(loads_.size()), largest, pinned});
  }

  void PlaceLargestFirst() {
    std::vector<size_t> order;
    for (size_t g = 0; g < groups_.size(); ++g) {
      if (groups_[g].pinned_rank == kNotPinned) order.push_back(g);
    }
    std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return MoreExpensive(a, b); });
    // Among equal loads the rank with fewer groups is next, so that groups that cost nothing are spread; then the
    // first.
    using Entry = std::tuple<double, size_t, size_t>;
    std::priority_queue<Entry, std::vector<Entry>, std::greater<>> emptiest;
    for (size_t rank = 0; rank < loads_.size(); ++rank) emptiest.emplace(loads_[rank], 0, rank);
    for (const size_t g : order) {
      const auto [load, count, rank] = emptiest.top();
      emptiest.pop();
      movable_[rank].push_back(g);
      ranks_[g] = static_cast<int32_t>(rank);
      loads_[rank] = load + Cost(g);
      emptiest.emplace(loads_[rank], count + 1, rank);
    }
  }

  void Exchange(double close_enough) {
    std::set<std::pair<double, size_t>> by_load;
    for (size_t rank = 0; rank < loads_.size(); ++rank) by_load.emplace(loads_[rank], rank);
    const int64_t exchanges_max = kExchangesPerRank * static_cast<int64_t>(loads_.size());
    for (int64_t i = 0; i < exchanges_max; ++i) {
      const auto [load, fullest] = *by_load.rbegin();
      if (load <= close_enough) return;
      Swap swap;
      size_t partner = fullest;
      auto emptiest = by_load.begin();
      for (int64_t p = 0; p < kPartners && emptiest->second != fullest && swap.gain == 0; ++p, ++emptiest) {
        partner = emptiest->second;
        swap = BestSwap(fullest, partner);
      }
      if (swap.gain == 0) return;
      by_load.erase({load, fullest});
      by_load.erase({loads_[partner], partner});
      Make(swap, fullest, partner);
      by_load.emplace(loads_[fullest], fullest);
      by_load.emplace(loads_[partner], partner);
    }
  }

  // The one that lowers the larger of both loads most. Both ranks' groups are sorted, so the best to take for one given
  // is a neighbour of the cost that would make the loads equal.
  Swap BestSwap(size_t fuller, size_t emptier) const {
    const std::vector<size_t>& from = movable_[fuller];
    const std::vector<size_t>& to = movable_[emptier];
    const double gap = loads_[fuller] - loads_[emptier];
    Swap best = {.gain = kLeastGain * loads_[fuller]};
    bool found = false;
    for (size_t given = 0; given < from.size(); ++given) {
      const double wanted = Cost(from[given]) - gap / 2;
      const auto below = std::partition_point(to.begin(), to.end(), [&](size_t g) { return Cost(g) >= wanted; });
      const auto at = static_cast<size_t>(below - to.begin());
      for (size_t taken = at == 0 ? 0 : at - 1; taken <= at; ++taken) {
        const double moved = Cost(from[given]) - (taken < to.size() ? Cost(to[taken]) : 0);
        const double gain = std::min(moved, gap - moved);
        if (gain <= best.gain) continue;
        best = {given, taken, gain};
        found = true;
      }
    }
    return found ? best : Swap{};
  }

  void Make(const Swap& swap, size_t fuller, size_t emptier) {
    const bool takes = swap.taken < movable_[emptier].size();
    const size_t given = movable_[fuller][swap.given], taken = takes ? movable_[emptier][swap.taken] : given;
    Move(given, fuller, emptier);
    if (takes) Move(taken, emptier, fuller);
  }

  void Move(size_t group, size_t from, size_t to) {
    const auto place = [&](std::vector<size_t>& list) {
      return std::lower_bound(list.begin(), list.end(), group, [&](size_t a, size_t b) { return MoreExpensive(a, b); });
    };
    movable_[from].erase(place(movable_[from]));
    movable_[to].insert(place(movable_[to]), group);
    loads_[from] -= Cost(group);
    loads_[to] += Cost(group);
    ranks_[group] = static_cast<int32_t>(to);
  }

  const std::span<const PlacementGroup> groups_;
  std::vector<double> costs_;
  std::vector<double> loads_;
  std::vector<std::vector<size_t>> movable_;  // the groups of each rank that are not pinned, most expensive first
  std::vector<int32_t> ranks_;
};

}  // namespace

double Placement::max_s() const { return *std::max_element(loads_s.begin(), loads_s.end()); }

double Placement::imbalance() const {
  const double mean = std::accumulate(loads_s.begin(), loads_s.end(), 0.0) / static_cast<double>(loads_s.size());
  return mean > 0 ? max_s() / mean : 1;
}

double Placement::over_bound() const { return bound_s > 0 ? max_s() / bound_s - 1 : 0; }

Placement PlaceGroups(std::span<const PlacementGroup> groups, int32_t ranks) {
  CHECK_GE(ranks, 1);
  return Placer(groups, ranks).Place();
}

}  // namespace stemma::server
