#include "tests/gpu/bench/report_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/file.h"
#include "tests/gpu/bench/test_results.h"
#include "tests/testing/status_matchers.h"

namespace stemma::testing {
namespace {

using nlohmann::json;

json Read(const std::string& path) { return json::parse(*ReadFile(path, 1 << 20)); }

TEST(ReportFileTest, EveryRowIsOnDiskAtOnce) {
  const TempFolder folder;
  const std::string path = folder / "report.json";
  auto report = ReportFile::Open(path);
  ASSERT_THAT(report, IsOk());
  report->Begin("rates");
  report->AddRow("rates", "products", {{"tflops", 1.5}});
  EXPECT_EQ(Read(path)["parts"]["rates"]["state"], "running");
  EXPECT_EQ(Read(path)["parts"]["rates"]["tables"]["products"][0]["tflops"], 1.5);
  report->End("rates", "done", 2);
  EXPECT_EQ(Read(path)["parts"]["rates"]["state"], "done");
}

TEST(ReportFileTest, AnotherProcessGoesOnWithItAndAPartIsTakenAnew) {
  const TempFolder folder;
  const std::string path = folder / "report.json";
  auto first = ReportFile::Open(path);
  ASSERT_THAT(first, IsOk());
  first->Begin("rates");
  first->AddRow("rates", "products", 1);
  first->Begin("dense");
  auto second = ReportFile::Open(path);
  ASSERT_THAT(second, IsOk());
  second->Begin("rates");
  second->AddRow("rates", "products", 2);
  EXPECT_EQ(Read(path)["parts"]["rates"]["tables"]["products"], json({2}));
  EXPECT_EQ(Read(path)["parts"]["dense"]["state"], "running");
  EXPECT_TRUE(second->part("capacity").is_null());
}

TEST(ReportFileTest, APartSaysOfWhichBuildItIs) {
  const TempFolder folder;
  const std::string path = folder / "report.json";
  auto report = ReportFile::Open(path);
  ASSERT_THAT(report, IsOk());
  report->SetTaken({{"commit", "a"}});
  report->Begin("rates");
  report->SetTaken({{"commit", "b"}});
  report->Begin("dense");
  EXPECT_EQ(Read(path)["parts"]["rates"]["commit"], "a");
  EXPECT_EQ(Read(path)["parts"]["dense"]["commit"], "b");
}

TEST(ReportFileTest, WhatIsNoReportIsRefusedAndStays) {
  const TempFolder folder;
  for (const char* text : {"", "{", "[]", R"({"schema": "another"})"}) {
    const std::string path = folder / "report.json";
    ASSERT_THAT(WriteFile(path, text), IsOk());
    EXPECT_THAT(ReportFile::Open(path), Invalid("move it away")) << text;
    EXPECT_EQ(*ReadFile(path, 100), text);
    std::filesystem::remove(path);
  }
}

TEST(ReportFileTest, TestResultsAreCountedAndADeadBinaryIsNamed) {
  const TempFolder folder;
  const std::string path = folder / "report.json", result = folder / "a.json";
  ASSERT_THAT(WriteFile(result, R"({"testsuites": [{"name": "A", "testsuite": [
    {"name": "Passes", "result": "COMPLETED", "host_ms": "1.5"},
    {"name": "Skips", "result": "SKIPPED"},
    {"name": "Fails", "result": "COMPLETED", "failures": [{"failure": "a.cc:1\nwrong"}]}]}]})"),
              IsOk());
  auto report = ReportFile::Open(path);
  ASSERT_THAT(report, IsOk());
  AddTestRun({"a_test", result, 1}, *report);
  AddTestRun({"b_test", folder / "none.json", 139}, *report);
  AddTestRun({"a_test", result, 1}, *report);  // once more: it takes its own place
  const json rows = Read(path)["parts"]["tests"]["tables"]["tests"];
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0]["passed"], 1);
  EXPECT_EQ(rows[0]["skipped"], json({"A.Skips"}));
  EXPECT_EQ(rows[0]["failed"][0]["test"], "A.Fails");
  EXPECT_EQ(rows[0]["seen"]["A.Passes.host_ms"], "1.5");
  EXPECT_EQ(rows[1]["exit_status"], 139);
  EXPECT_TRUE(rows[1].contains("not_measured"));
}

}  // namespace
}  // namespace stemma::testing
