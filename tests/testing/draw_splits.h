// Edits plans: clusters cut by their groups, and groups split over ranks, as drawn.
#pragma once

#include <cstdint>
#include <functional>

#include "stemma/v1/plan.pb.h"
#include "tests/testing/namespaces.h"

namespace stemma::testing {

// One cluster for each key of groups: the same waves, cut where the key changes.
void SplitClusters(v1::StepPlan& step, const std::function<int64_t(uint32_t group)>& key_of);

struct SplitDraw {
  uint32_t seed = 0;      // 0: nothing is split
  uint32_t ranks = 0;     // that share a group; 0: drawn for each, and some groups stay whole
  bool policies = false;  // draws the policies of both tapes, and the blocks and offload of the owner's
};

// Splits groups that are computed with reuse and have two members or more. A group is split alike in every step and
// pass in which the same members run. With one rank it does nothing.
void DrawSplits(const SplitDraw& draw, int num_ranks, v1::StepPlan& step);

}  // namespace stemma::testing
