// The pipeline stages' part of a plan: what each operation of a copy's clusters costs on each stage, and how the orders
// in which stages run them are written down. Pure.
//
// It reads clusters as the worker gets them: whatever the planner chose by is in them.
#pragma once

#include <vector>

#include "server/planner/memory_options.h"
#include "server/planner/planner.h"
#include "server/planner/stage_orders.h"
#include "stemma/v1/plan.pb.h"

namespace stemma::server {

// Returns the clusters of one copy of the model, in their order, as stages run them. Where context-parallel ranks share
// the copy, a round is the i-th wave of each of them, and costs what the longest of them does.
// A helper's part of a group holds its prefix and computes none: Phases A and C take it no time. With one stage it is
// what that stage does.
StageQuestion StagesOf(const MemoryOptions& options, const std::vector<PlannerGroup>& groups,
                       const std::vector<const v1::Cluster*>& clusters);

// Raises each stage's costs to what they are at most. `most`: empty, or of as many stages.
void RaiseStageCosts(const StageCosts& costs, StageCosts& most);

// Returns the idle seconds of the stage that has most to do.
double BubbleSeconds(const StageOrders& orders);

void DescribeStages(const MemoryOptions& options, const StageOrders& orders, v1::RankReport& report);

// Adds the orders to a step.
void AddCopyStages(uint32_t dp_rank, const StageOrders& orders, v1::StepPlan& step);

// Returns what rows take, at most, that a stage has sent to another one and holds until they are there: gradients to
// the stage before, and in a pass without backward outputs to the next one.
int64_t RowsInFlightBytes(const MemoryOptions& options, const PlannerRequest& request);

}  // namespace stemma::server
