// Tables of memory_bench on how far memory reaches: what Phase B's peak grows with, and the longest prompt and response
// under one budget.
#pragma once

#include <cstdint>

#include "tests/bench/memory_runs.h"
#include "tests/testing/namespaces.h"

namespace stemma::testing {

// Phase B's peak in blocks.
struct Flatness {
  double in_n = 0;  // of N = 8 over N = 2
  double in_p = 0;  // beyond K/V and their gradients: of the longest P over the shortest
};

Flatness PrintFlatness(MemoryRuns& runs);
void PrintCapacity(MemoryRuns& runs, int64_t budget_bytes);

}  // namespace stemma::testing
