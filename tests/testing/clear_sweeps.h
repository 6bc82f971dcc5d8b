// Makes of a step whose copies share their sweeps (server/planner/parameter_sweeps.h) the one that was before.
#pragma once

#include <algorithm>

#include "stemma/v1/plan.pb.h"

namespace stemma::testing {

// Takes sweeps and empty clusters away.
inline void ClearSweeps(v1::StepPlan& step) {
  auto& clusters = *step.mutable_clusters();
  const auto is_empty = [](const v1::Cluster& cluster) { return cluster.waves().empty(); };
  clusters.erase(std::remove_if(clusters.begin(), clusters.end(), is_empty), clusters.end());
  for (v1::Cluster& cluster : clusters) cluster.clear_sweeps();
}

}  // namespace stemma::testing
