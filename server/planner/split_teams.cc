#include "server/planner/split_teams.h"

#include <algorithm>
#include <numeric>
#include <queue>
#include <utility>

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
  explicit Team(const GroupToSplit& group) : group_(&group), end_s_(WholeSecondsOf(group.costs())), work_s_(end_s_) {}

  size_t ranks() const { return ranks_; }
  double end_s() const { return end_s_; }    // of its last rank
  double work_s() const { return work_s_; }  // of all its ranks, without waiting

  // Returns the smallest team tried that ends sooner and has no more ranks than `ranks_max`; nullopt: none does.
  std::optional<Team> Larger(size_t ranks_max) const {
    const size_t most = std::min(ranks_max, group_->by_cost().size());
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
    std::optional<GroupSplit> split = PartsBuilder(ranks_, /*work_s=*/0).Cut(*group_, /*most=*/true);
    for (int32_t& rank : split->ranks) rank += first;
    return split;
  }

 private:
  // Large teams that differ by one rank end at nearly the same time.
  static size_t NextSize(size_t ranks) { return ranks + 1 + ranks / 8; }

  void Take(size_t ranks) {
    ranks_ = ranks;
    PartsBuilder parts(ranks, /*work_s=*/0);
    const SharedGroup shared = parts.Add(*parts.Cut(*group_, /*most=*/true), group_->costs());
    end_s_ = RunTimeline(std::span(&shared, 1), WholeWork(ranks)).max_s();
    work_s_ = std::accumulate(parts.busy_s().begin(), parts.busy_s().end(), 0.0);
  }

  const GroupToSplit* group_;
  size_t ranks_ = 1;
  double end_s_, work_s_;
};

// A team while it grows: the sizes that it has had, the smallest first.
using Growth = std::vector<Team>;

// Gives the last team to end more ranks while there are some.
void GrowLast(std::vector<Growth>& teams, size_t ranks, double others_s) {
  const auto sooner = [&](size_t a, size_t b) { return teams[a].back().end_s() < teams[b].back().end_s(); };
  std::priority_queue<size_t, std::vector<size_t>, decltype(sooner)> last(sooner);
  double work_s = others_s;
  for (size_t i = 0; i < teams.size(); ++i) {
    last.push(i);
    work_s += teams[i].back().work_s();
  }
  size_t free = ranks - teams.size();
  while (true) {
    const size_t i = last.top();
    const Team& team = teams[i].back();
    const std::optional<Team> larger = team.Larger(team.ranks() + free);
    if (!larger) return;
    work_s += larger->work_s() - team.work_s();
    if (work_s / static_cast<double>(ranks) > team.end_s()) return;
    free -= larger->ranks() - team.ranks();
    last.pop();
    teams[i].push_back(*larger);
    last.push(i);
  }
}

}  // namespace

std::vector<std::optional<GroupSplit>> CutForTeams(std::span<const GroupToSplit* const> groups, size_t ranks,
                                                   double others_s) {
  std::vector<std::optional<GroupSplit>> splits(groups.size());
  if (groups.empty() || groups.size() > ranks) return splits;
  std::vector<Growth> teams;
  for (const GroupToSplit* const group : groups) teams.push_back({Team(*group)});
  GrowLast(teams, ranks, others_s);
  double last_s = 0;
  for (const Growth& team : teams) last_s = std::max(last_s, team.back().end_s());
  size_t first = 0;
  for (size_t i = 0; i < teams.size(); ++i) {
    const auto in_time = [&](const Team& team) { return team.end_s() <= last_s; };
    const Team& smallest = *std::find_if(teams[i].begin(), teams[i].end(), in_time);
    splits[i] = smallest.SplitFrom(static_cast<int32_t>(first));
    if (splits[i]) first += smallest.ranks();
  }
  return splits;
}

}  // namespace stemma::server
