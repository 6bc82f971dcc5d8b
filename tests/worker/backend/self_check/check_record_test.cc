#include "worker/backend/self_check/check_record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <regex>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "tests/testing/file_size_limit.h"
#include "tests/testing/namespaces.h"
#include "tests/testing/status_matchers.h"

namespace stemma::testing {
namespace {

CheckFingerprint Fingerprint() {
  return {.device_name = "NVIDIA H200",
          .compute_capability = "9.0",
          .driver = "580.65",
          .cuda_runtime = "13000",
          .torch = "2.11.0",
          .cublas = "13.0.2",
          .cudnn = "91900",
          .build_id = "ab12",
          .checks_build_id = "cd34",
          .dtype = "bf16",
          .shape = {.num_heads = 32, .num_kv_heads = 8, .head_size = 128}};
}

std::vector<CheckResult> Results() {
  std::vector<CheckResult> results;
  for (const std::string& kernel : CheckedKernels()) {
    results.push_back({.kernel = kernel, .worst_error = 0.1 + 1e-17, .tolerance = 1.0 / 3});
  }
  results[1].admitted = false;
  results[1].worst_error = std::numeric_limits<double>::infinity();
  results[1].reason = "[5, 33]: dx_TD is not finite at element 7";
  return results;
}

class CheckRecordTest : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = ::testing::TempDir() + "/check-record";
    std::filesystem::remove_all(directory_);
    std::filesystem::create_directories(directory_);
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::string Path() const { return absl::StrCat(directory_, "/self_check/nvidia-h200-bf16-h32-kv8-e128.json"); }
  std::string ReadText() const {
    std::stringstream text;
    text << std::ifstream(Path()).rdbuf();
    return text.str();
  }
  void WriteText(const std::string& text) const { std::ofstream(Path()) << text; }

  std::string directory_;
};

TEST_F(CheckRecordTest, WhatIsWrittenIsReadBackToTheBit) {
  EXPECT_EQ(ReadRecord(directory_, Fingerprint()), std::nullopt) << "there is none yet";
  ASSERT_THAT(WriteRecord(directory_, Fingerprint(), Results()), IsOk());
  EXPECT_EQ(ReadRecord(directory_, Fingerprint()), Results());
  std::vector<CheckResult> later = Results();
  later[1] = {.kernel = later[1].kernel};
  ASSERT_THAT(WriteRecord(directory_, Fingerprint(), later), IsOk());
  EXPECT_EQ(ReadRecord(directory_, Fingerprint()), later) << "replaced";
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(directory_ + "/self_check"), {}), 1)
      << "nothing else is left";
}

TEST_F(CheckRecordTest, AnythingElseThanItWasMadeOnChecksAgain) {
  const std::string text = EncodeRecord(Fingerprint(), Results());
  ASSERT_THAT(DecodeRecord(text, Fingerprint()).status(), IsOk());
  std::vector<CheckFingerprint> others(14, Fingerprint());
  others[0].device_name = "NVIDIA H100";
  others[1].compute_capability = "8.0";
  others[2].driver = "580.66";
  others[3].cuda_runtime = "13010";
  others[4].torch = "2.11.1";
  others[5].cudnn = "92000";
  others[6].build_id = "ab13";
  others[7].dtype = "fp32";
  others[8].shape.num_heads = 64;
  others[9].shape.num_kv_heads = 4;
  others[10].shape.head_size = 64;
  others[11].faster_attention = {"attention_cudnn"};
  others[12].cublas = "13.0.3";
  others[13].checks_build_id = "cd35";
  for (const CheckFingerprint& other : others) {
    EXPECT_EQ(DecodeRecord(text, other).status().code(), absl::StatusCode::kFailedPrecondition);
  }
}

TEST_F(CheckRecordTest, AnotherVersionAndOtherKernelsCheckAgain) {
  const std::string text = EncodeRecord(Fingerprint(), Results());
  const std::string newer = std::regex_replace(text, std::regex("\"version\": 1"), "\"version\": 2");
  ASSERT_NE(newer, text);
  EXPECT_EQ(DecodeRecord(newer, Fingerprint()).status().code(), absl::StatusCode::kFailedPrecondition);
  std::vector<CheckResult> fewer = Results();
  fewer.pop_back();
  EXPECT_EQ(DecodeRecord(EncodeRecord(Fingerprint(), fewer), Fingerprint()).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(CheckRecordTest, ADamagedFileChecksAgainAndIsReplaced) {
  ASSERT_THAT(WriteRecord(directory_, Fingerprint(), Results()), IsOk());
  const std::string whole = ReadText();
  const auto without = [&](const std::string& key) {
    return std::regex_replace(whole, std::regex("\"" + key + "\""), "\"" + key + "_\"");
  };
  for (const std::string& damaged :
       {std::string(), whole.substr(0, whole.size() / 2), std::string("[]"), std::string("\0\1\2", 3),
        without("version"), without("fingerprint"), without("results"), without("admitted"), without("kernel"),
        without("tolerance"), without("reason"), std::string(2 << 20, ' ')}) {
    WriteText(damaged);
    EXPECT_EQ(ReadRecord(directory_, Fingerprint()), std::nullopt) << damaged.substr(0, 200);
  }
  ASSERT_THAT(WriteRecord(directory_, Fingerprint(), Results()), IsOk());
  EXPECT_EQ(ReadRecord(directory_, Fingerprint()), Results());
}

TEST_F(CheckRecordTest, ADirectoryThatCannotBeWrittenIsAnErrorAndNoMore) {
  std::filesystem::remove_all(directory_);
  std::ofstream(directory_) << "a file";
  EXPECT_FALSE(WriteRecord(directory_, Fingerprint(), Results()).ok());
  EXPECT_EQ(ReadRecord(directory_, Fingerprint()), std::nullopt);
  EXPECT_EQ(ReadRecord("", Fingerprint()), std::nullopt);
}

TEST_F(CheckRecordTest, ADiskThatIsFullIsAnErrorAndLeavesTheLastRecord) {
  ASSERT_THAT(WriteRecord(directory_, Fingerprint(), Results()), IsOk());
  {
    const FileSizeLimit limit(0);
    EXPECT_FALSE(WriteRecord(directory_, Fingerprint(), {}).ok());
  }
  EXPECT_EQ(ReadRecord(directory_, Fingerprint()), Results());
}

TEST_F(CheckRecordTest, AReasonThatIsNoTextIsKeptAsFarAsItIs) {
  std::vector<CheckResult> results = Results();
  results[1].reason = "bytes \xff\xfe";
  ASSERT_THAT(WriteRecord(directory_, Fingerprint(), results), IsOk());
  const auto kept = ReadRecord(directory_, Fingerprint());
  ASSERT_TRUE(kept.has_value());
  EXPECT_TRUE((*kept)[1].reason.starts_with("bytes "));
}

}  // namespace
}  // namespace stemma::testing
