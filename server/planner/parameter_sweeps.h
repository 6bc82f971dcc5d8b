// Makes all copies of the model walk the same sweeps, where their parameters are sharded (ParameterSweeps of
// stemma/v1/plan.proto). Pure; called on a step whose clusters are known.
//
// Copies gather a layer's parameters from each other whenever one of them runs it, so what they run is laid side by
// side: the i-th clusters of all copies share a place, and each place has as many sweeps as the copy that has most in
// it. Clusters of a split group share one, and the others keep their order. A copy that has nothing in a place gets an
// empty cluster there. Invariants:
//  (1) every copy has as many clusters as any other, with equal sweeps, and runs what it ran in its order.
//  (2) clusters of different split groups never share a place.
#pragma once

#include <cstdint>
#include <vector>

#include "stemma/v1/plan.pb.h"

namespace stemma::server {

struct SweepRanks {
  uint32_t copies = 1;    // dp
  uint32_t cp_ranks = 1;  // that share a copy's waves
};

// `prefix_rows`: of each group of the request. REQUIRES: ranks list split groups in one order; no cluster has sweeps.
void ShareSweeps(const std::vector<int64_t>& prefix_rows, const SweepRanks& ranks, v1::StepPlan& step);

}  // namespace stemma::server
