// Predictions as the plan report shows them. Pure.
#pragma once

#include <cstdint>
#include <string>

#include "common/cost/state_bytes.h"
#include "server/planner/cost_model.h"
#include "server/planner/group_split.h"
#include "server/planner/memory_choice.h"
#include "server/planner/wave_packing.h"
#include "stemma/v1/plan.pb.h"
#include "stemma/v1/run_config.pb.h"

namespace stemma::server {

// Policies, bytes and seconds of each phase, and the reason.
void DescribeMemory(const MemoryOptions& options, const MemoryChoice& choice, v1::ClusterReport& report);

void DescribeState(const StateBytes& state, v1::OptimizerResidency residency, v1::StateBytes& report);

void DescribeRates(const Rates& rates, v1::Rates& report);

// Keeps the larger number of each phase.
void MaxSeconds(const v1::PhaseSeconds& seconds, v1::PhaseSeconds& most);
void AddSeconds(const v1::PhaseSeconds& seconds, v1::PhaseSeconds& total);

void DescribeSplit(const MemoryOptions& options, const PackingGroup& group, const GroupSplit& split,
                   const SharedGroup& shared, v1::SplitGroup& report);

// Counts a group of a rank, or its part of one that is split, with so many rows.
void CountGroup(int64_t rows, bool is_part, v1::RankReport& report);

// Raises the peaks of a rank and of the step to what is needed with what is held all the time.
void RaisePeaks(int64_t peak_bytes, int64_t with_headroom_bytes, const MemoryOptions& memory, v1::StepReport& report,
                v1::RankReport& rank_report);

// "split: ranks 1, 3 help", "split: helps rank 0"; empty: the cluster is no part of a split group.
std::string SplitReason(const v1::Cluster& cluster);

// Counts a step, or the pass before the steps, among the totals of a plan.
void AddToTotals(const v1::StepReport& step, v1::PlanReport& report);

}  // namespace stemma::server
