#include "server/planner/split_teams.h"

#include <algorithm>
#include <numeric>
#include <queue>
#include <utility>

#include "server/planner/split_parts.h"

namespace stemma::server {
namespace {

// Another rank in a team must let it end sooner by so much: what it receives is not free to others either.
constexpr double kWorthARank = 5e-3;

double WholeSecondsOf(const SplitCosts& costs) {
  return std::accumulate(costs.rollouts_s.begin(), costs.rollouts_s.end(), costs.forward_s + costs.backward_s);
}

// One group on so many ranks that have nothing else to do.
class Team {
 public:
  explicit Team(const SplitCosts& costs) : costs_(&costs), end_s_(WholeSecondsOf(costs)), work_s_(end_s_) {}

  size_t ranks() const { return ranks_; }
  double end_s() const { return end_s_; }    // of its last rank
  double work_s() const { return work_s_; }  // of all its ranks, without waiting

  // Returns the smallest team tried that ends sooner and has no more ranks than `ranks_max`; nullopt: none does.
  std::optional<Team> Larger(size_t ranks_max) const {
    const size_t most = std::min(ranks_max, costs_->rollouts_s.size());
    for (size_t ranks = NextSize(ranks_); ranks <= most; ranks = NextSize(ranks)) {
      Team larger = *this;
      larger.Take(ranks);
      if (larger.end_s_ < (1 - kWorthARank) * end_s_) return larger;
    }
    return std::nullopt;
  }

  // Returns the parts, on ranks from `first` on; nullopt: it is one rank.
  std::optional<GroupSplit> SplitFrom(int32_t first) const {
    if (ranks_ < 2) return std::nullopt;
    std::optional<GroupSplit> split = PartsBuilder(ranks_, /*work_s=*/0).Cut(*costs_, /*most=*/true);
    for (int32_t& rank : split->ranks) rank += first;
    return split;
  }

 private:
  // Large teams that differ by one rank end at nearly the same time.
  static size_t NextSize(size_t ranks) { return ranks + 1 + ranks / 8; }

  void Take(size_t ranks) {
    ranks_ = ranks;
    PartsBuilder parts(ranks, /*work_s=*/0);
    const SharedGroup shared = parts.Add(*parts.Cut(*costs_, /*most=*/true), *costs_);
    end_s_ = RunTimeline(std::span(&shared, 1), WholeWork(ranks)).max_s();
    work_s_ = std::accumulate(parts.busy_s().begin(), parts.busy_s().end(), 0.0);
  }

  const SplitCosts* costs_;
  size_t ranks_ = 1;
  double end_s_, work_s_;
};

// When the last team ends if each team that is the last gets more ranks while there are some.
double LastEnd(std::vector<Team> teams, size_t ranks, double others_s) {
  const auto sooner = [&](size_t a, size_t b) { return teams[a].end_s() < teams[b].end_s(); };
  std::priority_queue<size_t, std::vector<size_t>, decltype(sooner)> last(sooner);
  double work_s = others_s;
  for (size_t i = 0; i < teams.size(); ++i) {
    last.push(i);
    work_s += teams[i].work_s();
  }
  size_t free = ranks - teams.size();
  while (true) {
    const size_t i = last.top();
    const double end_s = teams[i].end_s();
    const std::optional<Team> larger = teams[i].Larger(teams[i].ranks() + free);
    if (!larger) return end_s;
    work_s += larger->work_s() - teams[i].work_s();
    if (work_s / static_cast<double>(ranks) > end_s) return end_s;
    free -= larger->ranks() - teams[i].ranks();
    last.pop();
    teams[i] = *larger;
    last.push(i);
  }
}

}  // namespace

std::vector<std::optional<GroupSplit>> CutForTeams(std::span<const SplitCosts* const> costs, size_t ranks,
                                                   double others_s) {
  std::vector<std::optional<GroupSplit>> splits(costs.size());
  if (costs.empty() || costs.size() > ranks) return splits;
  std::vector<Team> teams;
  for (const SplitCosts* const one : costs) teams.emplace_back(*one);
  const double last_s = LastEnd(teams, ranks, others_s);
  size_t first = 0;
  for (size_t i = 0; i < teams.size(); ++i) {
    while (teams[i].end_s() > last_s) teams[i] = *teams[i].Larger(ranks);
    splits[i] = teams[i].SplitFrom(static_cast<int32_t>(first));
    if (splits[i]) first += teams[i].ranks();
  }
  return splits;
}

}  // namespace stemma::server
