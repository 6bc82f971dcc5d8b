// Which rollouts of a cluster context-parallel ranks cut by rows: those that are too long to be one rank's, for its
// memory, or because the other ranks would wait. Whole ones exchange nothing of their own. Pure.
//
// A trajectory with a prefix of its own is never cut. Nor is anything of a cluster of several prefixes: it can be
// divided.
#pragma once

#include <optional>

#include "server/planner/cost_model.h"
#include "server/planner/memory_options.h"

namespace stemma::server {

// Returns the cluster, which does not fit as it is, with as few of its longest rollouts cut as it takes to fit;
// nullopt: it does not fit so either, or there is nothing to cut.
std::optional<ClusterShape> CutToFit(const MemoryOptions& options, const ClusterShape& cluster);

// Returns the cluster with so many more of its longest rollouts cut that ranks have about as much to do, or as nearly
// so as a few cuts make it; nullopt: they have anyway, or cutting makes them no more even. Whether it is faster, the
// caller finds out. It does not depend on memory.
std::optional<ClusterShape> CutToBalance(const MemoryOptions& options, const ClusterShape& cluster);

// Returns the cluster with all rollouts cut that can be: of all ways to cut it the one that needs least memory.
ClusterShape WithAllCut(const MemoryOptions& options, const ClusterShape& cluster);

}  // namespace stemma::server
