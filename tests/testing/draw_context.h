// Edits plans of context-parallel ranks: which rank runs which rollouts, and how K/V of prefixes are kept, as drawn.
#pragma once

#include <cstdint>

#include "stemma/v1/plan.pb.h"
#include "tests/testing/namespaces.h"

namespace stemma::testing {

struct ContextDraw {
  uint32_t seed = 0;  // 0: nothing is drawn
};

// Cuts each wave into waves of ranks; some ranks may have none. Draws for each cluster whose group is not split whether
// its K/V are gathered again. With one rank it does nothing.
void DrawContext(const ContextDraw& draw, int num_ranks, v1::StepPlan& step);

}  // namespace stemma::testing
