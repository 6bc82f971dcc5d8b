#include "server/planner/group_split.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

#include "glog/logging.h"
#include "server/planner/split_moves.h"
#include "server/planner/split_parts.h"
#include "server/planner/split_teams.h"

namespace stemma::server {
namespace {

// How many sets of groups are tried after the last one that was better.
constexpr size_t kTriesInVain = 2;
// How many of the most expensive groups may be split under SPLIT_AUTO, for each rank.
constexpr size_t kSplitsPerRank = 2;

class Splitter {
 public:
  explicit Splitter(const SplitRequest& request) : request_(request), pinned_(request.groups.size(), nullptr) {
    for (const GroupSplit& split : request.pinned) pinned_.at(split.group) = &split;
  }

  SplitPlacement Run() {
    const Placement whole = PlaceGroups(request_.groups, request_.ranks);
    SplitPlacement best = request_.pinned.empty() ? WholeOnly(whole) : OneByOne({});
    if (request_.ranks == 1) return best;
    if (request_.mode == v1::SPLIT_ON) best = OneByOne(MostExpensive(request_.groups.size()));
    if (request_.mode == v1::SPLIT_AUTO && best.max_s() > (1 + kWorthSplitting) * best.mean_s)
      best = Grow(std::move(best));
    best.whole_max_s = whole.max_s();
    return best;
  }

 private:
  // Groups that may be split and are not yet, the most expensive first; equally expensive ones in their order.
  std::vector<size_t> MostExpensive(size_t count) const {
    std::vector<size_t> groups;
    for (size_t g = 0; g < request_.may_split.size(); ++g) {
      const bool free = pinned_[g] == nullptr && request_.groups[g].pinned_rank == kNotPinned;
      if (request_.may_split[g] && free) groups.push_back(g);
    }
    std::stable_sort(groups.begin(), groups.end(),
                     [&](size_t a, size_t b) { return request_.groups[a].total_s() > request_.groups[b].total_s(); });
    groups.resize(std::min(groups.size(), count));
    return groups;
  }

  // Tries the most expensive groups, those above the mean together and then one more at a time. Where few groups are
  // left over when each rank has as many, those are tried, too.
  SplitPlacement Grow(SplitPlacement best) {
    const std::vector<size_t> candidates = MostExpensive(kSplitsPerRank * static_cast<size_t>(request_.ranks));
    const auto first = [&](size_t count) {
      return std::vector(candidates.begin(), candidates.begin() + Signed(count));
    };
    const bool pins = HasPins();  // ranks are not all alike
    const size_t left_over = LeftOver();
    if (!pins && left_over > 0 && left_over <= candidates.size())
      KeepBetter(Apart(first(left_over), /*others_s=*/0), best);
    const auto hot = std::count_if(candidates.begin(), candidates.end(),
                                   [&](size_t g) { return request_.groups[g].total_s() > best.mean_s; });
    size_t in_vain = 0;
    for (auto count = static_cast<size_t>(std::max<ptrdiff_t>(hot, 1)); count <= candidates.size(); ++count) {
      if (best.max_s() <= (1 + kWorthSplitting) * best.mean_s) break;
      const bool apart = !pins && KeepBetter(Apart(first(count), SecondsWithout(first(count))), best);
      const bool one_by_one = KeepBetter(OneByOne(first(count)), best);
      in_vain = apart || one_by_one ? 0 : in_vain + 1;
      if (in_vain > kTriesInVain) break;
    }
    return best;
  }

  bool HasPins() const {
    return !request_.pinned.empty() || std::any_of(request_.groups.begin(), request_.groups.end(),
                                                   [](const auto& group) { return group.pinned_rank != kNotPinned; });
  }

  // How many groups are left where each rank has as many of the others, one or more; 0: none.
  size_t LeftOver() const {
    const auto groups = std::count_if(request_.groups.begin(), request_.groups.end(),
                                      [](const PlacementGroup& group) { return group.total_s() > 0; });
    return groups > request_.ranks ? static_cast<size_t>(groups % request_.ranks) : 0;
  }

  static ptrdiff_t Signed(size_t count) { return static_cast<ptrdiff_t>(count); }

  static bool KeepBetter(SplitPlacement next, SplitPlacement& best) {
    if (next.max_s() >= (1 - kWorthSplitting) * best.max_s()) return false;
    best = std::move(next);
    return true;
  }

  SplitPlacement WholeOnly(const Placement& placement) const {
    SplitPlacement result;
    result.whole.assign(placement.loads_s.size(), std::vector<std::vector<size_t>>(1));
    for (size_t g = 0; g < placement.ranks.size(); ++g) {
      result.whole[static_cast<size_t>(placement.ranks[g])][0].push_back(g);
    }
    result.finish_s = placement.loads_s;
    result.exchange_s.resize(placement.loads_s.size());
    SetBounds(result);
    return result;
  }

  // With these groups split, each over the ranks that have least to do then, and those that are pinned so.
  SplitPlacement OneByOne(const std::vector<size_t>& split) {
    SplitPlacement result;
    PartsBuilder parts(static_cast<size_t>(request_.ranks), WorkOfAll());
    for (const PlacementGroup& group : request_.groups) {
      if (group.pinned_rank != kNotPinned) parts.AddPinned(group.pinned_rank, group.total_s());
    }
    for (const GroupSplit& pinned : request_.pinned) Add(pinned, parts, result);
    for (const size_t g : split) {
      std::optional<GroupSplit> cut = parts.Cut(GroupOf(g), request_.mode == v1::SPLIT_ON);
      if (!cut) continue;
      cut->group = g;
      Add(*std::move(cut), parts, result);
    }
    Finish(parts, result);
    return result;
  }

  // With these groups split, each over ranks that have no part of another, or whole where that ends as early.
  // `others_s`: of groups that are to be done meanwhile.
  SplitPlacement Apart(const std::vector<size_t>& split, double others_s) {
    std::vector<const GroupToSplit*> groups;
    for (const size_t g : split) groups.push_back(&GroupOf(g));
    std::vector<std::optional<GroupSplit>> cuts = CutForTeams(groups, static_cast<size_t>(request_.ranks), others_s);
    SplitPlacement result;
    PartsBuilder parts(static_cast<size_t>(request_.ranks), WorkOfAll());
    for (size_t i = 0; i < split.size(); ++i) {
      if (!cuts[i]) continue;
      cuts[i]->group = split[i];
      Add(*std::move(cuts[i]), parts, result);
    }
    Finish(parts, result);
    return result;
  }

  void Add(GroupSplit split, PartsBuilder& parts, SplitPlacement& result) {
    result.shared.push_back(parts.Add(split, CostsOf(split.group)));
    result.splits.push_back(std::move(split));
  }

  // Places what is not split, and improves what was found.
  void Finish(const PartsBuilder& parts, SplitPlacement& result) {
    PlaceAround(parts.busy_s(), IsSplit(result), result);
    const auto costs = [&](size_t g) -> const SplitCosts& { return CostsOf(g); };
    if (request_.mode == v1::SPLIT_AUTO) Improve(request_.groups, request_.pinned.size(), costs, result);
    SetTimes(result);
  }

  std::vector<bool> IsSplit(const SplitPlacement& placement) const {
    std::vector<bool> is_split(request_.groups.size(), false);
    for (const GroupSplit& split : placement.splits) is_split[split.group] = true;
    return is_split;
  }

  // Places the other groups around the parts, and orders them: while a helper would wait, it does what fits of its own.
  void PlaceAround(const std::vector<double>& busy_s, const std::vector<bool>& is_split, SplitPlacement& result) const {
    std::vector<size_t> others;
    std::vector<PlacementGroup> around;
    for (size_t g = 0; g < is_split.size(); ++g) {
      if (is_split[g]) continue;
      others.push_back(g);
      around.push_back(request_.groups[g]);
    }
    for (size_t rank = 0; rank < busy_s.size(); ++rank) {
      around.push_back({.suffixes_s = busy_s[rank], .pinned_rank = static_cast<int32_t>(rank)});
    }
    const Placement placement = PlaceGroups(around, request_.ranks);
    std::vector<std::vector<size_t>> of_ranks(busy_s.size());
    for (size_t i = 0; i < others.size(); ++i) {
      of_ranks[static_cast<size_t>(placement.ranks[i])].push_back(others[i]);
    }
    result.whole = OrderAround(request_.groups, result.shared, std::move(of_ranks));
  }

  void SetTimes(SplitPlacement& result) const {
    Timeline timeline = RunTimeline(result.shared, WholeSeconds(request_.groups, result.whole));
    result.finish_s = std::move(timeline.finish_s);
    result.exchange_s = std::move(timeline.exchange_s);
    SetBounds(result);
  }

  void SetBounds(SplitPlacement& result) const {
    const std::vector<bool> is_split = IsSplit(result);
    std::vector<double> pinned(static_cast<size_t>(request_.ranks));
    result.mean_s = WorkOfAll() / request_.ranks;
    result.bound_s = result.mean_s;
    for (size_t g = 0; g < request_.groups.size(); ++g) {
      if (is_split[g]) continue;
      const PlacementGroup& group = request_.groups[g];
      result.bound_s = std::max(result.bound_s, group.total_s());
      if (group.pinned_rank != kNotPinned) pinned[static_cast<size_t>(group.pinned_rank)] += group.total_s();
    }
    result.bound_s = std::max(result.bound_s, *std::max_element(pinned.begin(), pinned.end()));
    result.whole_max_s = result.max_s();
  }

  double WorkOfAll() const {
    double sum = 0;
    for (const PlacementGroup& group : request_.groups) sum += group.total_s();
    return sum;
  }

  double SecondsWithout(const std::vector<size_t>& groups) const {
    double sum = WorkOfAll();
    for (const size_t g : groups) sum -= request_.groups[g].total_s();
    return std::max(sum, 0.0);
  }

  const GroupToSplit& GroupOf(size_t group) {
    auto known = asked_.find(group);
    if (known == asked_.end()) known = asked_.emplace(group, request_.costs(group)).first;
    return known->second;
  }

  const SplitCosts& CostsOf(size_t group) { return GroupOf(group).costs(); }

  const SplitRequest& request_;
  std::vector<const GroupSplit*> pinned_;  // by group
  std::map<size_t, GroupToSplit> asked_;   // groups whose costs were asked for
};

}  // namespace

std::optional<size_t> GroupSplit::PartOfRank(size_t rank) const {
  const auto at = std::find(ranks.begin(), ranks.end(), static_cast<int32_t>(rank));
  if (at == ranks.end()) return std::nullopt;
  return static_cast<size_t>(at - ranks.begin());
}

void MarkSplit(const GroupSplit& split, size_t rank, v1::Cluster& cluster) {
  const auto owner = static_cast<uint32_t>(split.ranks[0]);
  if (rank != owner) return cluster.set_owner_rank(owner);
  for (size_t i = 1; i < split.ranks.size(); ++i) cluster.add_helper_ranks(static_cast<uint32_t>(split.ranks[i]));
}

double SplitPlacement::max_s() const { return *std::max_element(finish_s.begin(), finish_s.end()); }
double SplitPlacement::imbalance() const { return mean_s > 0 ? max_s() / mean_s : 1; }
double SplitPlacement::imbalance_whole() const { return mean_s > 0 ? whole_max_s / mean_s : 1; }
double SplitPlacement::over_bound() const { return bound_s > 0 ? std::max(0.0, max_s() / bound_s - 1) : 0; }

SplitPlacement PlaceAndSplit(const SplitRequest& request) {
  CHECK_GE(request.ranks, 1);
  CHECK(request.may_split.empty() || request.may_split.size() == request.groups.size());
  return Splitter(request).Run();
}

}  // namespace stemma::server
