// Predictions as the plan report shows them. Pure.
#pragma once

#include "common/cost/state_bytes.h"
#include "server/planner/cost_model.h"
#include "server/planner/memory_choice.h"
#include "stemma/v1/plan.pb.h"
#include "stemma/v1/run_config.pb.h"

namespace stemma::server {

// Policies, bytes and seconds of each phase, and the reason.
void DescribeMemory(const MemoryOptions& options, const MemoryChoice& choice, v1::ClusterReport& report);

void DescribeState(const StateBytes& state, v1::OptimizerResidency residency, v1::StateBytes& report);

void DescribeRates(const Rates& rates, v1::Rates& report);

void AddSeconds(const v1::PhaseSeconds& seconds, v1::PhaseSeconds& total);

}  // namespace stemma::server
