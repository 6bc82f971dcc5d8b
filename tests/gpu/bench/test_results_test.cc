#include "tests/gpu/bench/test_results.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/file.h"
#include "tests/testing/status_matchers.h"

namespace stemma::testing {
namespace {

using nlohmann::json;

constexpr char kResult[] = R"({"testsuites": [{"name": "A", "testsuite": [
  {"name": "Passes", "result": "COMPLETED", "host_ms": "1.5"},
  {"name": "Skips", "result": "SKIPPED"},
  {"name": "Fails", "result": "COMPLETED", "failures": [{"failure": "a.cc:1\nwrong"}]}]}]})";

class TestResultsTest : public ::testing::Test {
 protected:
  TestResultsTest() {
    EXPECT_THAT(WriteFile(result_, kResult), IsOk());
    auto report = ReportFile::Open(folder_ / "report.json");
    EXPECT_THAT(report, IsOk());
    report_ = std::make_unique<ReportFile>(*std::move(report));
    report_->SetTaken({{"commit", "a"}});
  }
  const json& part() const { return report_->part(kTestsPart); }
  const json& rows() const { return part()["tables"]["tests"]; }

  const TempFolder folder_;
  const std::string result_ = folder_ / "a.json";
  std::unique_ptr<ReportFile> report_;
};

TEST_F(TestResultsTest, TestsAreCountedAndADeadBinaryIsNamed) {
  AddTestRun({.name = "a_test", .result_file = result_, .exit_status = 1, .took_s = 12}, *report_);
  EXPECT_EQ(rows()[0]["seconds"], 12);
  AddTestRun({"b_test", folder_ / "none.json", 139}, *report_);
  AddTestRun({"a_test", result_, 1}, *report_);  // once more: it takes its own place
  ASSERT_EQ(rows().size(), 2u);
  EXPECT_EQ(rows()[0]["passed"], 1);
  EXPECT_EQ(rows()[0]["skipped"], json({"A.Skips"}));
  EXPECT_EQ(rows()[0]["failed"][0]["test"], "A.Fails");
  EXPECT_EQ(rows()[0]["seen"]["A.Passes.host_ms"], "1.5");
  EXPECT_EQ(rows()[1]["exit_status"], 139);
  EXPECT_TRUE(rows()[1].contains("not_measured"));
}

TEST_F(TestResultsTest, ThePartIsDoneOnlyWhenItIsEndedAndEveryBinaryRan) {
  report_->Begin(kTestsPart);
  AddTestRun({"a_test", result_, 0}, *report_);
  EXPECT_EQ(part()["state"], "running") << "others are to come";
  AddTestRun({.name = "b_test", .out_of_time = true}, *report_);
  EXPECT_EQ(rows()[1]["not_measured"], "out of time");
  report_->EndLeft(kTestsPart, 0, 75);
  EXPECT_EQ(part()["state"], "out of time");
  EXPECT_EQ(part()["seconds"], 75) << "what the next run may take time for";
  report_->Begin(kTestsPart);
  AddTestRun({"b_test", result_, 0}, *report_);
  report_->EndLeft(kTestsPart, 0, 75);
  EXPECT_EQ(part()["state"], "done") << "the same build ran the other one before";
}

TEST_F(TestResultsTest, BinariesOfAnotherBuildGoWhenThePartBegins) {
  report_->Begin(kTestsPart);
  AddTestRun({"a_test", result_, 0}, *report_);
  report_->SetTaken({{"commit", "b"}});
  report_->Begin(kTestsPart);
  EXPECT_FALSE(part()["tables"].contains("tests"));
}

}  // namespace
}  // namespace stemma::testing
