// The calibration on disk: what is written is read; what is broken is ignored, never fatal.
#include "server/coordinator/calibration_file.h"

#include <filesystem>
#include <fstream>

#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace stemma::server {
namespace {

using testing::IsOk;

class CalibrationFileTest : public ::testing::Test {
 protected:
  CalibrationFileTest() : folder_(std::filesystem::path(::testing::TempDir()) / "calibration_file_test") {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  ~CalibrationFileTest() override { std::filesystem::remove_all(folder_); }

  void Write(const std::string& text) const { std::ofstream(folder_ / "calibration.json") << text; }

  const std::filesystem::path folder_;
};

CalibrationBook Book() {
  CalibrationBook book;
  CalibrationSample sample;
  for (int rate = 0; rate < kNumRates; ++rate) sample.work.suffix[static_cast<Rate>(rate)] = 1.5e9 * rate;
  sample.work.prefix_forward[kLinear] = 3;
  sample.work.prefix_backward[kLinear] = 5;
  sample.seconds = {0.1, 0.25, 0.3};
  sample.apply_s = 0.0125;
  book["machine"] = {sample, sample};
  book["other"] = {sample};
  return book;
}

TEST_F(CalibrationFileTest, WhatIsWrittenIsRead) {
  EXPECT_THAT(WriteCalibration(folder_.string(), Book()), IsOk());
  const CalibrationBook book = ReadCalibration(folder_.string());
  EXPECT_EQ(CalibrationText(book), CalibrationText(Book()));
  ASSERT_EQ(book.at("machine").size(), 2u);
  EXPECT_EQ(book.at("machine")[1].work.suffix.units, Book()["machine"][1].work.suffix.units);
  EXPECT_EQ(book.at("machine")[1].work.prefix_backward[kLinear], 5);
  EXPECT_EQ(book.at("machine")[1].seconds.prefix_backward, 0.3);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "calibration.json.tmp"));
}

TEST_F(CalibrationFileTest, NoFileIsAnEmptyBook) {
  EXPECT_TRUE(ReadCalibration(folder_.string()).empty());
  EXPECT_TRUE(ReadCalibration("").empty());
}

TEST_F(CalibrationFileTest, ABrokenFileIsIgnoredAndReplacedByTheNextWrite) {
  const std::string whole = CalibrationText(Book());
  for (const std::string& text :
       {std::string(), std::string("{"), whole.substr(0, whole.size() / 2), std::string("[]"),
        std::string(R"({"version": 1, "machines": {}})"), std::string(R"({"version": 3, "machines": {"a": 3}})"),
        std::string(R"({"version": 3, "machines": {"a": [{"apply_s": "x"}]}})")}) {
    Write(text);
    EXPECT_TRUE(ReadCalibration(folder_.string()).empty()) << text;
  }
  EXPECT_THAT(WriteCalibration(folder_.string(), Book()), IsOk());
  EXPECT_EQ(ReadCalibration(folder_.string()).size(), 2u);
}

// Seconds of other units of work would be read as these units' rates.
TEST_F(CalibrationFileTest, AWholeFileOfAnotherVersionIsIgnored) {
  const std::string whole = CalibrationText(Book()), version = "\"version\": 3";
  ASSERT_NE(whole.find(version), std::string::npos) << whole.substr(0, 200);
  for (const char* other : {"0", "2", "4", "-3", "\"3\"", "3.5"}) {
    std::string text = whole;
    text.replace(text.find(version), version.size(), std::string("\"version\": ") + other);
    Write(text);
    EXPECT_TRUE(ReadCalibration(folder_.string()).empty()) << other;
  }
  Write(whole);
  EXPECT_EQ(ReadCalibration(folder_.string()).size(), 2u) << "control";
}

TEST_F(CalibrationFileTest, AFolderThatIsGoneIsAnErrorOfTheWrite) {
  EXPECT_FALSE(WriteCalibration((folder_ / "gone").string(), Book()).ok());
}

}  // namespace
}  // namespace stemma::server
