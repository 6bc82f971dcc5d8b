#include "tests/gpu/bench/test_results.h"

#include <utility>

#include "common/base/file.h"

namespace stemma::testing {
namespace {

using nlohmann::json;

constexpr uint64_t kResultBytesMax = uint64_t{1} << 24;

// An empty object where there is no result.
json Parsed(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadFile(path, kResultBytesMax);
  json result = text.ok() ? json::parse(*text, /*cb=*/nullptr, /*allow_exceptions=*/false) : json::object();
  return result.is_object() ? result : json::object();
}

// Counts the tests of one result, and names those that failed or were skipped.
void AddCounts(const json& result, json& row) {
  for (const json& suite : result.value("testsuites", json::array())) {
    for (const json& test : suite.value("testsuite", json::array())) {
      const std::string name = suite.value("name", "") + "." + test.value("name", "");
      if (test.contains("failures")) {
        row["failed"].push_back({{"test", name}, {"why", test["failures"][0].value("failure", "")}});
      } else if (test.value("result", "") == "SKIPPED") {
        row["skipped"].push_back(name);
      } else {
        row["passed"] = row["passed"].get<int>() + 1;
      }
      for (const auto& [key, value] : test.items()) {
        // What a test recorded of what it saw stands beside its result's own fields.
        const bool is_own = key.find('_') == std::string::npos || key == "type_param" || key == "value_param";
        if (value.is_string() && !is_own && test.value("result", "") != "SKIPPED") {
          row["seen"][name + "." + key] = value;
        }
      }
    }
  }
}

}  // namespace

void AddTestRun(const TestRun& run, ReportFile& report) {
  if (report.part(kTestsPart).is_null()) report.Begin(kTestsPart);
  const json what = {{"binary", run.name}};
  json row = what;
  row["passed"] = 0;
  row["failed"] = row["skipped"] = json::array();
  if (run.out_of_time) {
    row["not_measured"] = kOutOfTime;
  } else {
    row["exit_status"] = run.exit_status;
    row["seconds"] = run.took_s;
    const json result = Parsed(run.result_file);
    if (!result.contains("testsuites")) row["not_measured"] = "it ended before its tests did, see " + run.name + ".log";
    AddCounts(result, row);
  }
  report.AddRow(kTestsPart, "tests", what, std::move(row));
}

}  // namespace stemma::testing
