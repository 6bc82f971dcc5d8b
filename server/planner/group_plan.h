// One group of a request as the planner sees it: which way it is computed and what it costs, and, once an entry pass
// placed it, on which ranks it stays. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/cost/flops.h"
#include "server/planner/group_split.h"
#include "server/planner/memory_chooser.h"
#include "server/planner/planner.h"
#include "server/planner/wave_packing.h"

namespace stemma::server {

struct GroupPlan {
  PackingGroup packing;
  bool runs = false;
  std::string reason;
  Flops flops, flops_dense;
  int64_t tokens_logical = 0, tokens_computed = 0;
  int64_t rollouts_run = 0;
  bool stays_whole = false;  // a pass before the step could not hold it as copies that share it do
  int32_t pinned_rank = kNotPinned;
  std::optional<GroupSplit> pinned_split = std::nullopt;  // its group is not filled
};

// `model`: the whole one, whose FLOPs are counted; the chooser's options are of the rank that has most of it.
GroupPlan PlanGroup(MemoryChooser& chooser, const ModelConfig& model, v1::Schedule schedule, uint32_t index,
                    const PlannerGroup& group);

// Computes with reuse what PlanGroup would compute dense, but ranks had better share: alone that takes a little longer,
// split it leaves no rank waiting. What is not split of a mini-batch placed so stays dense. See PlaceMiniBatch.
void ReuseWhatIsShared(MemoryChooser& chooser, const ModelConfig& model, const std::vector<uint32_t>& batch,
                       int32_t ranks, std::vector<GroupPlan>& groups);

// Places a mini-batch, given by its groups' indices, on so many ranks: of the placement, groups are places in `batch`,
// and rollouts are places in packing.members. `chooser`: of the pass that is placed.
SplitPlacement PlaceMiniBatch(MemoryChooser& chooser, std::span<const GroupPlan> groups,
                              const std::vector<uint32_t>& batch, int32_t ranks, v1::Split mode);

// Keeps the mini-batch's groups where they are placed: entry log-probs lie where they were computed.
void PinMiniBatch(const SplitPlacement& placement, const std::vector<uint32_t>& batch, std::vector<GroupPlan>& groups);

}  // namespace stemma::server
