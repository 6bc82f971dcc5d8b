#include "server/planner/group_plan.h"

#include <utility>

#include "server/planner/group_cost.h"
#include "server/planner/split_cost.h"

namespace stemma::server {

GroupPlan PlanGroup(MemoryChooser& chooser, const ModelConfig& model, v1::Schedule schedule, uint32_t index,
                    const PlannerGroup& group) {
  GroupPlan plan;
  plan.packing.group = index;
  plan.packing.uid = group.uid;
  plan.packing.prefix_rows = group.prompt_tokens - 1;
  const int64_t prefix = plan.packing.prefix_rows;
  int64_t suffix_rows = 0;
  for (uint32_t i = 0; i < group.rollouts.size(); ++i) {
    const PlannerRollout& rollout = group.rollouts[i];
    if (!rollout.run) continue;
    plan.packing.members.push_back({i, rollout.response_tokens});
    plan.flops += SuffixFlops(model, prefix, rollout.response_tokens);
    plan.flops_dense += DenseFlops(model, prefix, rollout.response_tokens);
    suffix_rows += rollout.response_tokens;
  }
  plan.rollouts_run = static_cast<int64_t>(plan.packing.members.size());
  plan.runs = plan.rollouts_run > 0;
  if (!plan.runs) return plan;
  plan.flops += PrefixFlops(model, prefix);
  plan.reason = ChooseReuse(chooser, schedule, 1 - plan.flops.total() / plan.flops_dense.total(), plan.packing);
  plan.tokens_logical = plan.rollouts_run * prefix + suffix_rows;
  plan.tokens_computed = plan.packing.reuse ? prefix + suffix_rows : plan.tokens_logical;
  if (!plan.packing.reuse) plan.flops = plan.flops_dense;
  return plan;
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
