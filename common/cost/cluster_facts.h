// What follows from a cluster of a plan alone: whose prefix it is, in how many blocks it runs, and which waves each
// context-parallel rank has. Pure; the planner counts by it and the workers expand their programs by it, so that both
// mean the same operations.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "stemma/v1/plan.pb.h"

namespace stemma {

// Tells whether other copies of the model compute rollouts of the cluster's group, too: it is the owner's or a
// helper's.
bool IsSplit(const v1::Cluster& cluster);

// Tells whether the copy that has the cluster runs Phases A and C: there are prefixes, and no other copy owns them.
bool RunsOwnPrefix(const v1::Cluster& cluster);

// Returns in how many blocks Phases A and C run here; 0: they do not. `prefix_rows`: of each group of the request; a
// group beyond its end has none.
int NumPrefixBlocks(const v1::Cluster& cluster, std::span<const int64_t> prefix_rows);

// Returns the indices of each context-parallel rank's waves, in their order: its own ones, and those that are cut by
// rows, which are everybody's. A rank's i-th wave is in the i-th round. A wave of a rank that there is not is nobody's.
std::vector<std::vector<int>> WavesByRank(const v1::Cluster& cluster, int ranks);

// Returns in how many rounds the waves run: the most that any rank has.
int RoundsOfWaves(const v1::Cluster& cluster, int ranks);

}  // namespace stemma
