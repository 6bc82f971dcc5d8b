// Table of memory_bench on the planner: under some budgets, what it chooses beside the best of the other ways.
#pragma once

#include <vector>

#include "tests/bench/policy_tables.h"
#include "tests/testing/namespaces.h"

namespace stemma::testing {

// The planner's choice and, by `rows`, the fastest way that fits the budget, in turns.
void PrintChoices(MemoryRuns& runs, const Shape& shape, const std::vector<PolicyRow>& rows, int rounds);

}  // namespace stemma::testing
