// Tables of memory_bench on offload: what it costs, its bookkeeping and its copies apart, and when each copy ran.
#pragma once

#include <string>
#include <vector>

#include "tests/bench/memory_runs.h"
#include "tests/bench/spread.h"
#include "tests/testing/namespaces.h"

namespace stemma::testing {

// One tape policy three ways, in turns: seconds of the phases, one for each round.
struct OffloadCost {
  std::string policy;
  // On the device; offloaded by an engine that moves nothing; offloaded.
  std::vector<double> resident_s, nothing_s, offloaded_s;

  Spread bookkeeping() const { return RatioOf(nothing_s, resident_s); }
  Spread whole() const { return RatioOf(offloaded_s, resident_s); }
  Spread copies() const;  // of the resident seconds, what offloaded takes beyond bookkeeping
};

std::vector<OffloadCost> MeasureOffloadCost(MemoryRuns& runs, const Shape& shape, int rounds);
void PrintOffloadCost(const Shape& shape, const std::vector<OffloadCost>& costs);

// S0 offloaded without headroom, and with headroom for all.
void PrintOffloadTimeline(MemoryRuns& runs, const Shape& shape);

}  // namespace stemma::testing
