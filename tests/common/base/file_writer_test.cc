#include "common/base/file_writer.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <optional>
#include <string>
#include <utility>

#include "common/base/file.h"
#include "tests/testing/file_size_limit.h"
#include "tests/testing/status_matchers.h"

namespace stemma {
namespace {

using ::stemma::testing::FileSizeLimit;
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
  const FileSizeLimit limit(3);
  std::optional<FileWriter> writer = Create();
  EXPECT_FALSE(writer->Write("abcd", 4).ok());
  EXPECT_TRUE(exists());
  writer.reset();
  EXPECT_FALSE(exists());
}

}  // namespace
}  // namespace stemma
