// Which waves of a cluster each context-parallel rank runs, in their order: its own ones, and those that are cut by
// rows, which are everybody's. A rank's i-th wave is in the i-th round. Pure; read by whoever expands or counts a plan.
#pragma once

#include <vector>

#include "stemma/v1/plan.pb.h"

namespace stemma {

// Returns the indices of each rank's waves. A wave of a rank that there is not is nobody's.
std::vector<std::vector<int>> WavesByRank(const v1::Cluster& cluster, int ranks);

// Returns in how many rounds the waves run: the most that any rank has.
int RoundsOfWaves(const v1::Cluster& cluster, int ranks);

}  // namespace stemma
