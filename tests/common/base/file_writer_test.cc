#include "common/base/file_writer.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>

#include "common/base/file.h"
#include "tests/testing/status_matchers.h"

namespace stemma {
namespace {

using ::stemma::testing::IsOk;
using ::stemma::testing::StatusIs;
using ::stemma::testing::TempFolder;

class FileWriterTest : public ::testing::Test {
 protected:
  FileWriter Create() {
    absl::StatusOr<FileWriter> writer = FileWriter::Create(path_);
    EXPECT_TRUE(writer.ok()) << writer.status();
    return *std::move(writer);
  }
  bool exists() const { return std::filesystem::exists(path_); }

  const TempFolder folder_;
  const std::string path_ = folder_ / "file";
};

TEST_F(FileWriterTest, WhatIsClosedStays) {
  {
    FileWriter first = Create();
    ASSERT_THAT(first.Write("ab", 2), IsOk());
    FileWriter writer = std::move(first);
    ASSERT_THAT(writer.Write("c", 1), IsOk());
    ASSERT_THAT(writer.Close(), IsOk());
  }
  EXPECT_EQ(ReadFile(path_, 100).value(), "abc");
  EXPECT_THAT(FileWriter::Create(path_), StatusIs(absl::StatusCode::kAlreadyExists, ::testing::HasSubstr(path_)));
  EXPECT_EQ(ReadFile(path_, 100).value(), "abc") << "what was there is not the new writer's to remove";
}

TEST_F(FileWriterTest, WhatIsNotClosedIsRemovedWithItsLastWriter) {
  {
    std::optional<FileWriter> first = Create();
    FileWriter writer = *std::move(first);
    first.reset();
    EXPECT_TRUE(exists()) << "a writer that gave its file away removes nothing";
    ASSERT_THAT(writer.Write("ab", 2), IsOk());
  }
  EXPECT_FALSE(exists());
}

TEST_F(FileWriterTest, WhatDoesNotFitIsRemoved) {
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto signal_before = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit few = {.rlim_cur = 3, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &few), 0);
  std::optional<FileWriter> writer = Create();
  EXPECT_FALSE(writer->Write("abcd", 4).ok());
  EXPECT_TRUE(exists());
  writer.reset();
  EXPECT_FALSE(exists());
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, signal_before);
}

}  // namespace
}  // namespace stemma
