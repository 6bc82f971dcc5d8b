// Rows of groups that are computed dense, with prefix reuse, or both in turns: what several parts share.
#pragma once

#include <string>

#include "tests/gpu/bench/bench_run.h"
#include "tests/gpu/bench/stack.h"
#include "tests/testing/namespaces.h"

namespace stemma::testing {

inline constexpr int kWarmUps = 2, kRuns = 3;
// Runs that take so long hold many waves alike, and are their own repetition: no other begins after so many seconds.
inline constexpr double kLongRunSeconds = 2;

// The most whole suffixes whose rows are no more than a dense trajectory's.
int64_t UsualWave(const GroupSize& size);

// Seconds of so many runs after the warm-ups (warm_ups.h); `last` is told of the last one. Errors: as of Stack::Run.
absl::StatusOr<Spread> TimeGroup(Stack& stack, const GroupSize& size, const GroupWay& way, GroupRun* last = nullptr);

// Runs at most so many waves of a group where a profiler records them, with --profile.
absl::Status Profile(const BenchRun& run, Stack& stack, const GroupSize& size, const GroupWay& way, int64_t waves);

// A row of the table "dense": seconds, TFLOP/s and MFU.
void MeasureDense(BenchRun& run, Stack& stack, const GroupSize& size, const std::string& what);

// A row of the table "reuse": dense and reuse in turns, beside the ideals.
void MeasureReuse(BenchRun& run, Stack& stack, const GroupSize& size, int64_t wave_suffixes);

}  // namespace stemma::testing
