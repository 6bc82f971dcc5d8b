// Tables of memory_bench on tape policies: the bytes of each phase, and seconds beside those of keep-all.
#pragma once

#include <string>
#include <vector>

#include "tests/bench/memory_runs.h"
#include "tests/bench/spread.h"
#include "tests/testing/namespaces.h"

namespace stemma::testing {

// One way of computing a cluster.
struct PolicyRow {
  Memory memory;
  Measured bytes_run;                       // of the shape for bytes
  Measured seconds_run;                     // of the shape for seconds, the last one
  std::vector<double> seconds, keep_all_s;  // of that shape, in pairs
  Spread ratio() const { return RatioOf(seconds, keep_all_s); }
};

// The shape whose bytes count, and a shorter one of the same proportions whose seconds are taken in pairs.
struct PolicyShapes {
  Shape bytes, seconds;
};

const Memory& KeepAll();
// All policies, offload and blocks; keep-all is the first.
std::vector<PolicyRow> MeasurePolicies(MemoryRuns& runs, const PolicyShapes& shapes, int rounds);
const PolicyRow& RowOf(const std::vector<PolicyRow>& rows, const std::string& name);

// FLOPs over those of keep-all.
double FlopsFactor(const ModelConfig& config, const Shape& shape, const Memory& memory);

void PrintPolicyBytes(MemoryRuns& runs, const Shape& shape, const std::vector<PolicyRow>& rows);
void PrintPolicySeconds(MemoryRuns& runs, const Shape& shape, const std::vector<PolicyRow>& rows);

}  // namespace stemma::testing
