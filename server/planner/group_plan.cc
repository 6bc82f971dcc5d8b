#include "server/planner/group_plan.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "server/planner/group_cost.h"
#include "server/planner/split_cost.h"

namespace stemma::server {
namespace {

// Counts what a group computes in the way that it takes.
void CountWork(const ModelConfig& model, GroupPlan& plan) {
  const int64_t prefix = plan.packing.prefix_rows;
  Flops reuse, dense;
  int64_t suffix_rows = 0;
  for (const PackingMember& member : plan.packing.members) {
    reuse += SuffixFlops(model, prefix, member.rows);
    dense += DenseFlops(model, prefix, member.rows);
    suffix_rows += member.rows;
  }
  reuse += PrefixFlops(model, prefix);
  plan.flops = plan.packing.reuse ? reuse : dense;
  plan.flops_dense = dense;
  plan.tokens_logical = plan.rollouts_run * prefix + suffix_rows;
  plan.tokens_computed = plan.packing.reuse ? prefix + suffix_rows : plan.tokens_logical;
}

}  // namespace

GroupPlan PlanGroup(MemoryChooser& chooser, const ModelConfig& model, v1::Schedule schedule, uint32_t index,
                    const PlannerGroup& group) {
  GroupPlan plan;
  plan.packing.group = index;
  plan.packing.uid = group.uid;
  plan.packing.prefix_rows = group.prompt_tokens - 1;
  for (uint32_t i = 0; i < group.rollouts.size(); ++i) {
    if (group.rollouts[i].run) plan.packing.members.push_back({i, group.rollouts[i].response_tokens});
  }
  plan.rollouts_run = static_cast<int64_t>(plan.packing.members.size());
  plan.runs = plan.rollouts_run > 0;
  if (!plan.runs) return plan;
  plan.packing.reuse = true;
  CountWork(model, plan);
  plan.reason = ChooseReuse(chooser, schedule, 1 - plan.flops.total() / plan.flops_dense.total(), plan.packing);
  CountWork(model, plan);
  return plan;
}

void ReuseWhatIsShared(MemoryChooser& chooser, const ModelConfig& model, const std::vector<uint32_t>& batch,
                       int32_t ranks, std::vector<GroupPlan>& groups) {
  const auto may_change = [&](uint32_t g) {
    const PackingGroup& packing = groups[g].packing;
    return !packing.reuse && packing.prefix_rows > 0 && packing.members.size() > 1;
  };
  if (std::none_of(batch.begin(), batch.end(), may_change)) return;
  const SplitPlacement before = PlaceMiniBatch(chooser, groups, batch, ranks, v1::SPLIT_AUTO);
  if (before.max_s() <= (1 + kWorthSplitting) * before.mean_s) return;
  std::map<uint32_t, GroupPlan> dense;  // those that are tried, as they were
  for (const uint32_t g : batch) {
    GroupPlan& group = groups[g];
    if (!may_change(g) || PlacementGroupOf(chooser, group.packing).total_s() <= before.mean_s) continue;
    GroupPlan as_it_was = group;
    std::optional<std::string> reason = ReuseToShare(chooser, group.packing);
    if (!reason) continue;
    group.reason = *std::move(reason);
    CountWork(model, group);
    dense.emplace(g, std::move(as_it_was));
  }
  if (dense.empty()) return;
  const SplitPlacement after = PlaceMiniBatch(chooser, groups, batch, ranks, v1::SPLIT_AUTO);
  if (after.max_s() < (1 - kWorthSplitting) * before.max_s()) {
    for (const GroupSplit& split : after.splits) dense.erase(batch[split.group]);
  }
  for (auto& [g, as_it_was] : dense) groups[g] = std::move(as_it_was);
}

SplitPlacement PlaceMiniBatch(MemoryChooser& chooser, std::span<const GroupPlan> groups,
                              const std::vector<uint32_t>& batch, int32_t ranks, v1::Split mode) {
  std::vector<PlacementGroup> costs(batch.size());
  SplitRequest request = {.ranks = ranks, .mode = mode};
  request.costs = [&](size_t i) { return SplitCostsOf(chooser, groups[batch[i]].packing); };
  request.may_split.resize(batch.size());
  for (size_t i = 0; i < batch.size() && ranks > 1; ++i) {
    const GroupPlan& group = groups[batch[i]];
    costs[i] = PlacementGroupOf(chooser, group.packing);
    costs[i].pinned_rank = group.pinned_rank;
    request.may_split[i] = !group.stays_whole && MaySplit(chooser, group.packing);
    if (!group.pinned_split) continue;
    request.pinned.push_back(*group.pinned_split);
    request.pinned.back().group = i;
  }
  request.groups = costs;
  return PlaceAndSplit(request);
}

void PinMiniBatch(const SplitPlacement& placement, const std::vector<uint32_t>& batch, std::vector<GroupPlan>& groups) {
  for (size_t rank = 0; rank < placement.whole.size(); ++rank) {
    for (const std::vector<size_t>& place : placement.whole[rank]) {
      for (const size_t i : place) groups[batch[i]].pinned_rank = static_cast<int32_t>(rank);
    }
  }
  for (const GroupSplit& split : placement.splits) groups[batch[split.group]].pinned_split = split;
}

}  // namespace stemma::server
