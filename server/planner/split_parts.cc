#include "server/planner/split_parts.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <queue>
#include <utility>

namespace stemma::server {
namespace {

// Another helper must let the step end sooner by so much: what it receives is not free to others either.
constexpr double kWorthAHelper = 5e-3;

size_t Index(int32_t rank) { return static_cast<size_t>(rank); }

// What splitting adds to the work of all ranks.
double AddedSeconds(const SplitCosts& costs, size_t helpers) {
  return static_cast<double>(helpers) * (2 * (costs.send_s + costs.return_s) + costs.part_s);
}

// Returns the rollouts of each part, ascending.
GroupSplit SplitInto(std::vector<int32_t> ranks, const std::vector<uint32_t>& part_of) {
  GroupSplit split = {.ranks = std::move(ranks), .rollouts = {}};
  split.rollouts.resize(split.ranks.size());
  for (uint32_t rollout = 0; rollout < part_of.size(); ++rollout) split.rollouts[part_of[rollout]].push_back(rollout);
  return split;
}

}  // namespace

GroupToSplit::GroupToSplit(SplitCosts costs) : costs_(std::move(costs)), by_cost_(costs_.rollouts_s.size()) {
  const std::vector<double>& seconds = costs_.rollouts_s;
  std::iota(by_cost_.begin(), by_cost_.end(), 0u);
  std::stable_sort(by_cost_.begin(), by_cost_.end(), [&](uint32_t a, uint32_t b) { return seconds[a] > seconds[b]; });
}

SharedGroup SharedOf(const GroupSplit& split, const SplitCosts& costs) {
  SharedGroup shared = {.ranks = split.ranks,
                        .waves_s = std::vector<double>(split.ranks.size()),
                        .forward_s = costs.forward_s,
                        .backward_s = costs.backward_s,
                        .send_s = costs.send_s,
                        .return_s = costs.return_s,
                        .returns = costs.returns};
  for (size_t i = 0; i < split.ranks.size(); ++i) {
    if (i > 0) shared.waves_s[i] = costs.part_s;
    for (const uint32_t rollout : split.rollouts[i]) shared.waves_s[i] += costs.rollouts_s[rollout];
  }
  return shared;
}

PartsBuilder::PartsBuilder(size_t ranks, double work_s)
    : pinned_s_(ranks), busy_s_(ranks), clock_s_(ranks), waiting_s_(ranks), work_s_(work_s) {}

double PartsBuilder::Load(int32_t rank) const { return pinned_s_[Index(rank)] + busy_s_[Index(rank)]; }

std::optional<GroupSplit> PartsBuilder::Cut(const GroupToSplit& group, bool most) const {
  std::vector<int32_t> emptiest(busy_s_.size());
  std::iota(emptiest.begin(), emptiest.end(), 0);
  std::stable_sort(emptiest.begin(), emptiest.end(), [&](int32_t a, int32_t b) {
    return std::pair(Load(a), clock_s_[Index(a)]) < std::pair(Load(b), clock_s_[Index(b)]);
  });
  const size_t parts_max = std::min(emptiest.size(), group.by_cost().size());
  if (parts_max < 2) return std::nullopt;
  const auto deal = [&](size_t parts) {
    return Deal(group, {emptiest.begin(), emptiest.begin() + static_cast<ptrdiff_t>(parts)});
  };
  Dealt best = deal(most ? parts_max : 2);
  for (size_t parts = 3; parts <= parts_max && !most;) {
    // More helpers send more, so that no number of them ends below this.
    const double least_s = (work_s_ + AddedSeconds(group.costs(), parts - 1)) / static_cast<double>(busy_s_.size());
    if (least_s >= (1 - kWorthAHelper) * best.end_s) break;
    Dealt next = deal(parts);
    if (next.end_s < (1 - kWorthAHelper) * best.end_s) best = std::move(next);
    parts = parts == parts_max ? parts + 1 : std::min(parts_max, parts + 1 + parts / 4);
  }
  return SplitInto(std::move(best.ranks), best.part_of);
}

// The first of the ranks is the owner.
PartsBuilder::Dealt PartsBuilder::Deal(const GroupToSplit& group, std::vector<int32_t> ranks) const {
  const SplitCosts& costs = group.costs();
  std::sort(ranks.begin() + 1, ranks.end());
  const size_t helpers = ranks.size() - 1;
  // When each would end its part: the owner sends to one after the other, and a helper may come too late for its turn.
  std::vector<double> end_s(ranks.size());
  double sent_s = clock_s_[Index(ranks[0])] + costs.forward_s;
  for (size_t i = 1; i <= helpers; ++i) {
    sent_s = std::max(sent_s, clock_s_[Index(ranks[i])]) + costs.send_s;
    end_s[i] = std::max(sent_s, Load(ranks[i]) - costs.backward_s) + costs.part_s;
  }
  end_s[0] = sent_s;

  // The parts that may get another rollout; of those that end together the first one is first.
  using Entry = std::pair<double, size_t>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> parts;
  for (size_t i = 0; i < end_s.size(); ++i) parts.emplace(end_s[i], i);
  Dealt dealt = {.ranks = std::move(ranks), .part_of = std::vector<uint32_t>(costs.rollouts_s.size())};
  std::vector<bool> has_rollouts(helpers + 1);
  size_t empty = helpers + 1, left = costs.rollouts_s.size();
  for (const uint32_t rollout : group.by_cost()) {
    while (left == empty && has_rollouts[parts.top().second]) parts.pop();  // one is left for each
    const size_t i = parts.top().second;
    parts.pop();
    empty -= has_rollouts[i] ? 0 : 1;
    has_rollouts[i] = true;
    dealt.part_of[rollout] = static_cast<uint32_t>(i);
    parts.emplace(end_s[i] += costs.rollouts_s[rollout], i);
    --left;
  }
  const double waves_end_s = *std::max_element(end_s.begin(), end_s.end());
  dealt.end_s = std::max(waves_end_s + static_cast<double>(helpers) * costs.return_s + costs.backward_s,
                         (work_s_ + AddedSeconds(costs, helpers)) / static_cast<double>(busy_s_.size()));
  return dealt;
}

SharedGroup PartsBuilder::Add(const GroupSplit& split, const SplitCosts& costs) {
  SharedGroup shared = SharedOf(split, costs);
  const size_t helpers = split.ranks.size() - 1;
  const double exchange_s = costs.send_s + costs.return_s;
  work_s_ += AddedSeconds(costs, helpers);
  for (size_t i = 0; i <= helpers; ++i) busy_s_[Index(split.ranks[i])] += shared.waves_s[i] + exchange_s;
  busy_s_[Index(split.ranks[0])] +=
      (static_cast<double>(helpers) - 1) * exchange_s + costs.forward_s + costs.backward_s;
  RunShared(shared, clock_s_, waiting_s_);
  return shared;
}

std::vector<std::vector<std::vector<size_t>>> OrderAround(std::span<const PlacementGroup> groups,
                                                          std::span<const SharedGroup> shared,
                                                          std::vector<std::vector<size_t>> of_ranks) {
  std::vector<std::vector<std::vector<size_t>>> whole(of_ranks.size());
  for (size_t rank = 0; rank < of_ranks.size(); ++rank) {
    whole[rank].resize(shared.size() + 1);
    std::stable_sort(of_ranks[rank].begin(), of_ranks[rank].end(),
                     [&](size_t a, size_t b) { return groups[a].total_s() > groups[b].total_s(); });
  }
  std::vector<double> clock_s(of_ranks.size()), exchange_s(of_ranks.size());
  for (size_t place = 0; place < shared.size(); ++place) {
    const SharedGroup& group = shared[place];
    double ready_s = clock_s[Index(group.ranks[0])] + group.forward_s;
    for (size_t i = 1; i < group.ranks.size(); ++i) {
      const size_t rank = Index(group.ranks[i]);
      std::erase_if(of_ranks[rank], [&](size_t g) {
        const bool fits = clock_s[rank] + groups[g].total_s() <= ready_s;
        if (fits) clock_s[rank] += groups[g].total_s();
        if (fits) whole[rank][place].push_back(g);
        return fits;
      });
      ready_s = std::max(ready_s, clock_s[rank]) + group.send_s;
    }
    RunShared(group, clock_s, exchange_s);
  }
  for (size_t rank = 0; rank < of_ranks.size(); ++rank) {
    whole[rank].back() = std::move(of_ranks[rank]);
    for (std::vector<size_t>& place : whole[rank]) std::sort(place.begin(), place.end());
  }
  return whole;
}

WholeWork WholeSeconds(std::span<const PlacementGroup> groups,
                       const std::vector<std::vector<std::vector<size_t>>>& whole) {
  WholeWork work(whole.size());
  for (size_t rank = 0; rank < whole.size(); ++rank) {
    for (size_t place = 0; place < whole[rank].size(); ++place) {
      double sum = 0;
      for (const size_t g : whole[rank][place]) sum += groups[g].total_s();
      if (!whole[rank][place].empty()) work.Add(rank, place, sum);
    }
  }
  return work;
}

}  // namespace stemma::server
