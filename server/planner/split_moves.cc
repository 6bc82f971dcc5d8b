#include "server/planner/split_moves.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "server/planner/split_parts.h"

namespace stemma::server {
namespace {

constexpr int kAttemptsMax = 1000;
// So many rollouts or groups of one place are tried, from the most expensive to the cheapest.
constexpr size_t kTriedOfAPlace = 8;
// Where the slowest rank is so close to the mean, moves cost more than they win.
constexpr double kCloseEnoughRanks = 1e-3;
constexpr double kLeastGainOfMove = 1e-9;  // of the seconds: below it is rounding

class Mover {
 public:
  Mover(std::span<const PlacementGroup> groups, const std::function<const SplitCosts&(size_t)>& costs,
        SplitPlacement& placement)
      : groups_(groups), costs_(costs), p_(placement), work_(WholeSeconds(groups, placement.whole)) {
    for (const PlacementGroup& group : groups) mean_s_ += group.total_s() / static_cast<double>(work_.num_ranks());
    score_ = Measure();
  }

  bool more() const { return attempts_ < kAttemptsMax && score_.max_s > (1 + kCloseEnoughRanks) * mean_s_; }

  // Tries to move each of the split's rollouts to another of its parts; true: one was moved.
  bool MoveRollouts(size_t split) {
    GroupSplit& s = p_.splits[split];
    const std::vector<double>& seconds = costs_(s.group).rollouts_s;
    for (size_t from = 0; from < s.ranks.size(); ++from) {
      if (s.rollouts[from].size() < 2) continue;
      const auto cost = [&](uint32_t rollout) { return seconds[rollout]; };
      for (const uint32_t rollout : Some(s.rollouts[from], cost)) {
        for (size_t to = 0; to < s.ranks.size() && more(); ++to) {
          if (to == from || !Keeps([&] { Shift(split, from, to, seconds[rollout]); },
                                   [&] { Shift(split, to, from, seconds[rollout]); })) {
            continue;
          }
          std::erase(s.rollouts[from], rollout);
          s.rollouts[to].insert(std::upper_bound(s.rollouts[to].begin(), s.rollouts[to].end(), rollout), rollout);
          return true;
        }
      }
    }
    return false;
  }

  // Tries to do a group of a rank at another place, or on another rank at its end; true: one was moved.
  bool MoveWhole(size_t rank) {
    const size_t last = p_.shared.size();
    for (size_t place = 0; place <= last; ++place) {
      const auto cost = [&](size_t g) { return groups_[g].total_s(); };
      for (const size_t g : Some(p_.whole[rank][place], cost)) {
        for (size_t to = 0; to <= last && more(); ++to) {
          if (to != place && (to == last || TakesPart(rank, to)) && MoveGroup(g, {rank, place}, {rank, to}))
            return true;
        }
        if (groups_[g].pinned_rank != kNotPinned) continue;
        for (size_t other = 0; other < p_.whole.size() && more(); ++other) {
          if (other != rank && MoveGroup(g, {rank, place}, {other, last})) return true;
        }
      }
    }
    return false;
  }

  size_t num_ranks() const { return p_.whole.size(); }

 private:
  using Place = std::pair<size_t, size_t>;  // rank, place

  // The slowest rank's end; of equal ones, the one in which all ranks together end sooner.
  struct Score {
    double max_s = 0, squares = 0;
    bool BetterThan(const Score& other) const {
      if (max_s < other.max_s * (1 - kLeastGainOfMove)) return true;
      return max_s <= other.max_s && squares < other.squares * (1 - kLeastGainOfMove);
    }
  };

  Score Measure() {
    ++attempts_;
    const Timeline timeline = RunTimeline(p_.shared, work_);
    Score score = {.max_s = timeline.max_s()};
    for (const double seconds : timeline.finish_s) score.squares += seconds * seconds;
    return score;
  }

  template <typename Do, typename Undo>
  bool Keeps(Do change, Undo undo) {
    change();
    const Score score = Measure();
    if (score.BetterThan(score_)) {
      score_ = score;
      return true;
    }
    undo();
    return false;
  }

  template <typename T, typename Cost>
  static std::vector<T> Some(std::vector<T> of, Cost cost) {
    std::stable_sort(of.begin(), of.end(), [&](T a, T b) { return cost(a) > cost(b); });
    if (of.size() <= kTriedOfAPlace) return of;
    std::vector<T> some;
    for (size_t i = 0; i < kTriedOfAPlace; ++i) some.push_back(of[i * (of.size() - 1) / (kTriedOfAPlace - 1)]);
    return some;
  }

  bool TakesPart(size_t rank, size_t place) const {
    const std::vector<int32_t>& ranks = p_.shared[place].ranks;
    return std::find(ranks.begin(), ranks.end(), static_cast<int32_t>(rank)) != ranks.end();
  }

  void Shift(size_t split, size_t from, size_t to, double seconds) {
    p_.shared[split].waves_s[from] -= seconds;
    p_.shared[split].waves_s[to] += seconds;
  }

  bool MoveGroup(size_t g, Place from, Place to) {
    const auto shift = [&](Place a, Place b) {
      work_.Add(a.first, a.second, -groups_[g].total_s());
      work_.Add(b.first, b.second, groups_[g].total_s());
    };
    if (!Keeps([&] { shift(from, to); }, [&] { shift(to, from); })) return false;
    std::erase(p_.whole[from.first][from.second], g);
    std::vector<size_t>& there = p_.whole[to.first][to.second];
    there.insert(std::upper_bound(there.begin(), there.end(), g), g);
    return true;
  }

  const std::span<const PlacementGroup> groups_;
  const std::function<const SplitCosts&(size_t)>& costs_;
  SplitPlacement& p_;
  WholeWork work_;
  double mean_s_ = 0;
  Score score_;
  int attempts_ = 0;
};

}  // namespace

void Improve(std::span<const PlacementGroup> groups, size_t pinned,
             const std::function<const SplitCosts&(size_t group)>& costs, SplitPlacement& placement) {
  if (placement.splits.size() == pinned) return;
  Mover mover(groups, costs, placement);
  bool moved = true;
  while (moved && mover.more()) {
    moved = false;
    for (size_t split = pinned; split < placement.splits.size(); ++split) moved |= mover.MoveRollouts(split);
    for (size_t rank = 0; rank < mover.num_ranks(); ++rank) moved |= mover.MoveWhole(rank);
  }
  for (size_t i = pinned; i < placement.splits.size(); ++i) {  // what was added and taken away leaves rounding
    placement.shared[i] = SharedOf(placement.splits[i], costs(placement.splits[i].group));
  }
}

}  // namespace stemma::server
