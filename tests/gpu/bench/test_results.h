// Results of GoogleTest binaries as rows of the report's part "tests", which gpu_check.sh begins and ends around them.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "tests/gpu/bench/report_file.h"
#include "tests/testing/namespaces.h"

namespace stemma::testing {

inline constexpr char kTestsPart[] = "tests";

// One binary's run: its exit status, and the file that --gtest_output=json: named, which is absent where it died.
struct TestRun {
  std::string name = {}, result_file = {};
  int exit_status = 0;
  bool out_of_time = false;  // it did not begin
  double took_s = 0;
};

void AddTestRun(const TestRun& run, ReportFile& report);

}  // namespace stemma::testing
