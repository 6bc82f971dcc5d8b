// Edits plans of context-parallel ranks: which rank runs which rollouts, which they cut by rows, and how K/V of
// prefixes are kept, as drawn.
#pragma once

#include <cstdint>
#include <vector>

#include "stemma/v1/plan.pb.h"
#include "tests/testing/namespaces.h"

namespace stemma::testing {

struct ContextDraw {
  uint32_t seed = 0;      // 0: nothing is drawn
  bool cuts_all = false;  // each rollout that can be cut by rows is; else one of three
};

// The sizes of a group of the payload.
struct ContextGroup {
  int64_t prefix_rows = 0;
  std::vector<int64_t> response_rows;
};
using ContextGroups = std::vector<ContextGroup>;

// Cuts each wave into waves of ranks; some ranks may have none. Draws for each rollout of `groups` that can be cut by
// rows whether it is, and for each cluster whose group is not split whether its K/V are gathered again. With one rank
// it does nothing.
void DrawContext(const ContextDraw& draw, int num_ranks, const ContextGroups& groups, v1::StepPlan& step);

}  // namespace stemma::testing
