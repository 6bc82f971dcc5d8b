#include "tests/gpu/bench/report_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/file.h"
#include "tests/testing/status_matchers.h"

namespace stemma::testing {
namespace {

using nlohmann::json;

json Read(const std::string& path) { return json::parse(*ReadFile(path, 1 << 20)); }

// A report of a build, with a row of the part "rates" that was measured.
absl::StatusOr<ReportFile> WithOneRow(const std::string& path, const std::string& commit) {
  absl::StatusOr<ReportFile> report = ReportFile::Open(path);
  if (!report.ok()) return report;
  report->SetTaken({{"commit", commit}});
  report->Begin("rates", {.device = "A"});
  report->AddRow("rates", "products", {{"rows", 8}}, {{"rows", 8}, {"tflops", 1.5}});
  return report;
}

TEST(ReportFileTest, EveryRowIsOnDiskAtOnce) {
  const TempFolder folder;
  const std::string path = folder / "report.json";
  auto report = ReportFile::Open(path);
  ASSERT_THAT(report, IsOk());
  report->Begin("rates");
  report->AddRow("rates", "products", json::object(), {{"tflops", 1.5}});
  EXPECT_EQ(Read(path)["parts"]["rates"]["state"], "running");
  EXPECT_EQ(Read(path)["parts"]["rates"]["tables"]["products"][0]["tflops"], 1.5);
  report->End("rates", "done", 2);
  EXPECT_EQ(Read(path)["parts"]["rates"]["state"], "done");
}

TEST(ReportFileTest, AnotherProcessGoesOnWithIt) {
  const TempFolder folder;
  const std::string path = folder / "report.json";
  ASSERT_THAT(WithOneRow(path, "a"), IsOk());
  auto second = ReportFile::Open(path);
  ASSERT_THAT(second, IsOk());
  EXPECT_EQ(second->part("rates")["state"], "running");
  EXPECT_TRUE(second->part("capacity").is_null());
}

TEST(ReportFileTest, APartSaysWhatItIsOf) {
  const TempFolder folder;
  const std::string path = folder / "report.json";
  auto report = ReportFile::Open(path);
  ASSERT_THAT(report, IsOk());
  report->SetTaken({{"commit", "a"}});
  report->Begin("rates", {.device = "H100", .date = "2026-11-27"});
  report->SetTaken({{"commit", "b"}});
  report->Begin("dense", {.device = "H200", .date = "2026-11-28", .tiny = true});
  const json parts = Read(path)["parts"];
  EXPECT_EQ(parts["rates"]["commit"], "a");
  EXPECT_EQ(parts["rates"]["device"], "H100");
  EXPECT_EQ(parts["rates"]["date"], "2026-11-27");
  EXPECT_FALSE(parts["rates"].contains("tiny"));
  EXPECT_EQ(parts["dense"]["commit"], "b");
  EXPECT_EQ(parts["dense"]["device"], "H200");
  EXPECT_EQ(parts["dense"]["tiny"], true);
}

TEST(ReportFileTest, WhatWasMeasuredStaysWhereASecondRunHasNoNumber) {
  const TempFolder folder;
  const std::string path = folder / "report.json";
  ASSERT_THAT(WithOneRow(path, "a"), IsOk());
  auto report = ReportFile::Open(path);
  ASSERT_THAT(report, IsOk());
  report->Begin("rates", {.device = "A"});
  const json what = {{"rows", 8}};
  for (const char* why : {kOutOfTime, kNotAskedFor}) {
    EXPECT_EQ(report->AddRow("rates", "products", what, {{"rows", 8}, {"not_measured", why}})["tflops"], 1.5);
  }
  EXPECT_EQ(report->AddRow("rates", "products", what, {{"rows", 8}, {"cut", true}})["tflops"], 1.5) << "a bound";
  EXPECT_EQ(Read(path)["parts"]["rates"]["tables"]["products"].size(), 1u);
  // A number, or a reason that another run found, is news.
  EXPECT_EQ(report->AddRow("rates", "products", what, {{"rows", 8}, {"tflops", 2}})["tflops"], 2);
  EXPECT_TRUE(report->AddRow("rates", "products", what, {{"rows", 8}, {"not_measured", "out of memory"}})
                  .contains("not_measured"));
  EXPECT_EQ(report->AddRow("rates", "products", {{"rows", 9}}, {{"rows", 9}, {"not_measured", kOutOfTime}})["rows"], 9);
  EXPECT_EQ(Read(path)["parts"]["rates"]["tables"]["products"].size(), 2u);
}

TEST(ReportFileTest, RowsOfAnotherBuildDeviceOrShapeGo) {
  struct Second {
    const char *first_commit, *commit, *device;
    bool tiny, stays;
  };
  for (const Second& second :
       {Second{"a", "a", "A", false, true}, Second{"a", "b", "A", false, false},
        Second{"a with changes", "a with changes", "A", false, false}, Second{"unknown", "unknown", "A", false, false},
        Second{"", "", "A", false, false}, Second{"a", "a", "B", false, false}, Second{"a", "a", "A", true, false}}) {
    const TempFolder folder;
    const std::string path = folder / "report.json";
    ASSERT_THAT(WithOneRow(path, second.first_commit), IsOk());
    auto report = ReportFile::Open(path);
    ASSERT_THAT(report, IsOk());
    report->SetTaken({{"commit", second.commit}});
    report->Begin("rates", {.device = second.device, .tiny = second.tiny});
    EXPECT_EQ(report->part("rates")["tables"].contains("products"), second.stays)
        << second.first_commit << ", " << second.commit << ", " << second.device;
  }
}

TEST(ReportFileTest, TwoRunsHaveNoReportInCommon) {
  const TempFolder folder;
  const std::string path = folder / "report.json";
  {
    const auto first = ReportFile::Open(path);
    ASSERT_THAT(first, IsOk());
    EXPECT_THAT(ReportFile::Open(path), Invalid("another run writes"));
    EXPECT_THAT(ReportFile::Open(folder / "other.json"), IsOk());
  }
  EXPECT_THAT(ReportFile::Open(path), IsOk());
}

TEST(ReportFileTest, AFolderThatTakesNoFileIsAClearError) {
  EXPECT_THAT(ReportFile::Open("/proc/self/report.json"), Invalid("cannot be written"));
}

TEST(ReportFileTest, APartThatWasLeftRunningSaysWhatEndedIt) {
  const TempFolder folder;
  const std::string path = folder / "report.json";
  auto report = ReportFile::Open(path);
  ASSERT_THAT(report, IsOk());
  report->EndLeft("rates", 1, 9);
  EXPECT_TRUE(report->part("rates").is_null()) << "it never began";
  for (const auto& [status, state] : {std::pair{124, "out of time, in a row"}, std::pair{137, "out of time, in a row"},
                                      std::pair{139, "failed: its process ended with status 139"}}) {
    report->Begin("rates");
    report->EndLeft("rates", status, 9);
    EXPECT_EQ(report->part("rates")["state"], state);
    EXPECT_EQ(report->part("rates")["seconds"], 9);
  }
  report->End("rates", "failed: why", 1);
  report->EndLeft("rates", 1, 9);
  EXPECT_EQ(report->part("rates")["state"], "failed: why") << "it said so itself";
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

}  // namespace
}  // namespace stemma::testing
