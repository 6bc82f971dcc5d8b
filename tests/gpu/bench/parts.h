// The parts of the bench, each a table or two of report.json. A part's error means that it could not begin.
#pragma once

#include "absl/status/status.h"
#include "tests/gpu/bench/bench_run.h"
#include "tests/testing/namespaces.h"

namespace stemma::testing {

struct Part {
  const char* name;
  const char* what;
  double seconds;  // that it is expected to take on one H200
  absl::Status (*run)(BenchRun& run);
};

absl::Status RunSelfCheckPart(BenchRun& run);  // self_check_part.cc
absl::Status RunRates(BenchRun& run);          // rates_part.cc
absl::Status RunDense(BenchRun& run);          // dense_part.cc
absl::Status RunReuse(BenchRun& run);          // reuse_part.cc
absl::Status RunReuseLarge(BenchRun& run);     // reuse_part.cc
absl::Status RunOffload(BenchRun& run);        // memory_part.cc
absl::Status RunMemory(BenchRun& run);         // memory_part.cc
absl::Status RunKernels(BenchRun& run);        // kernels_part.cc
absl::Status RunWaves(BenchRun& run);          // reuse_part.cc
absl::Status RunQwen(BenchRun& run);           // reuse_part.cc
absl::Status RunCapacity(BenchRun& run);       // memory_part.cc
absl::Status RunOptimizer(BenchRun& run);      // memory_part.cc

}  // namespace stemma::testing
