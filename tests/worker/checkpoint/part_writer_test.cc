// The writer of parts of a file: what it says it wrote, and disks that fail.
#include "worker/checkpoint/part_writer.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "common/base/error.h"
#include "common/base/file.h"
#include "tests/testing/status_matchers.h"
#include "tests/worker/checkpoint/file_calls.h"

namespace stemma::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

std::vector<std::pair<uint64_t, uint64_t>> RangesOf(const internal::v1::CheckpointPart& part) {
  std::vector<std::pair<uint64_t, uint64_t>> ranges;
  for (const internal::v1::ByteRange& range : part.ranges()) ranges.emplace_back(range.begin(), range.bytes());
  return ranges;
}

std::string DigestOfBytes(const std::string& bytes) {
  Sha256 digest;
  digest.Update(bytes);
  return digest.FinishHex();
}

absl::Status Write(PartWriter& writer, uint64_t offset, const std::string& bytes) {
  writer.Begin({.begin = offset, .length = bytes.size()});
  return writer.Append(bytes);
}

class PartWriterTest : public ::testing::Test {
 protected:
  absl::StatusOr<PartWriter> Open(uint32_t rank = 3) const { return PartWriter::Open(folder_.path(), "file", rank); }
  std::string Content() const { return ReadFile(folder_ / "file", 1 << 20).value(); }

  const FileCallsGuard guard_;
  const TempFolder folder_;
};

TEST_F(PartWriterTest, TellsItsRangesMergedWhereTheyTouch) {
  auto writer = Open();
  ASSERT_THAT(writer, IsOk());
  TakeSyncedFiles();
  for (const auto& [offset, bytes] :
       std::vector<std::pair<uint64_t, std::string>>{{0, "abc"}, {3, "de"}, {9, "x"}, {10, "yz"}, {14, "!"}}) {
    ASSERT_THAT(Write(*writer, offset, bytes), IsOk());
  }
  EXPECT_THAT(TakeSyncedFiles(), IsEmpty());
  const auto part = writer->Close();
  ASSERT_THAT(part, IsOk());
  EXPECT_THAT(TakeSyncedFiles(), ElementsAre("file")) << "on the disk before it is told";
  EXPECT_EQ(part->file(), "file");
  EXPECT_EQ(part->rank(), 3u);
  EXPECT_THAT(RangesOf(*part), ElementsAre(Pair(0u, 5u), Pair(9u, 3u), Pair(14u, 1u)));
  EXPECT_EQ(part->sha256(), DigestOfBytes("abcdexyz!"));
  EXPECT_EQ(Content(), std::string("abcde\0\0\0\0xyz\0\0!", 15));
}

std::string RunsText(const internal::v1::CheckpointPart& part) {
  std::string text;
  for (const internal::v1::ByteRange& range : part.ranges()) text += "{ " + range.ShortDebugString() + " }";
  return text;
}

// Two columns of three of a matrix, handed over in whatever pieces, between what lies before and behind it.
TEST_F(PartWriterTest, ColumnsAreOneRange) {
  auto writer = Open();
  ASSERT_THAT(writer, IsOk());
  ASSERT_THAT(Write(*writer, 0, "head"), IsOk());
  writer->Begin({.begin = 5, .length = 4, .runs = 3, .stride = 6});
  for (const char* bytes : {"a", "bcdA", "BC", "D0123"}) ASSERT_THAT(writer->Append(bytes), IsOk());
  ASSERT_THAT(Write(*writer, 21, "after"), IsOk());
  const auto part = writer->Close();
  ASSERT_THAT(part, IsOk());
  EXPECT_EQ(RunsText(*part), "{ bytes: 4 }{ begin: 5 bytes: 4 runs: 3 stride: 6 }{ begin: 21 bytes: 5 }");
  EXPECT_EQ(part->sha256(), DigestOfBytes("headabcdABCD0123after")) << "in the order of the ranges, run by run";
  EXPECT_EQ(Content(), std::string("head\0abcd\0\0ABCD\0\0", 17) + "0123after");
}

TEST_F(PartWriterTest, WhatIsWrittenTwiceIsOurBug) {
  auto writer = Open();
  ASSERT_THAT(writer, IsOk());
  writer->Begin({.begin = 5, .length = 4, .runs = 2, .stride = 6});
  EXPECT_DEATH(writer->Begin({.begin = 15, .length = 1}), "the bytes before are whole");
  ASSERT_THAT(writer->Append("abcdefgh"), IsOk());
  EXPECT_DEATH((void)writer->Append("i"), "file");
  EXPECT_DEATH(writer->Begin({.begin = 14, .length = 1}), "ranges ascend");
  ASSERT_THAT(Write(*writer, 15, "i"), IsOk());
}

TEST_F(PartWriterTest, TwoWriteOneFileWithoutCuttingIt) {
  auto first = Open(0);
  ASSERT_THAT(first, IsOk());
  ASSERT_THAT(Write(*first, 4, "late"), IsOk());
  auto second = Open(1);
  ASSERT_THAT(second, IsOk());
  ASSERT_THAT(Write(*second, 0, "four"), IsOk());
  ASSERT_THAT(second->Close(), IsOk());
  ASSERT_THAT(first->Close(), IsOk());
  EXPECT_EQ(Content(), "fourlate");
}

TEST_F(PartWriterTest, AnEmptyFileIsAPartWithoutRanges) {
  auto writer = Open();
  ASSERT_THAT(writer, IsOk());
  const auto part = writer->Close();
  ASSERT_THAT(part, IsOk());
  EXPECT_THAT(RangesOf(*part), IsEmpty());
  EXPECT_EQ(part->sha256(), DigestOfBytes(""));
  EXPECT_EQ(Content(), "");
}

TEST_F(PartWriterTest, ADiskThatTakesLittleAtATimeGetsEverything) {
  CutWrites(3);
  auto writer = Open();
  ASSERT_THAT(writer, IsOk());
  ASSERT_THAT(Write(*writer, 2, "0123456789"), IsOk());
  ASSERT_THAT(writer->Close(), IsOk());
  EXPECT_EQ(Content(), std::string("\0\0", 2) + "0123456789");
}

TEST_F(PartWriterTest, AFullDiskKeepsItsReason) {
  auto writer = Open();
  ASSERT_THAT(writer, IsOk());
  FailWritesOf("/file", ENOSPC, /*bytes_before=*/4);
  const absl::Status status = Write(*writer, 0, "0123456789");
  EXPECT_TRUE(HasReason(status, Reason::kDiskFull)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(folder_ / "file"));
  FailSyncsOf("/file", EIO);
  EXPECT_THAT(writer->Close(), StatusIs(absl::StatusCode::kInternal, HasSubstr("fsync")));
}

// The server ends where a row of the journal finds no room.
TEST_F(PartWriterTest, TheLastOfTheDiskIsLeftForTheJournal) {
  constexpr int64_t kLeft = 64 << 20;
  auto writer = Open();
  ASSERT_THAT(writer, IsOk());
  SetFreeBytes(kLeft + 3);
  EXPECT_THAT(Write(*writer, 0, "abc"), IsOk());
  const absl::Status status = Write(*writer, 3, "defg");
  EXPECT_TRUE(HasReason(status, Reason::kDiskFull)) << status;
  EXPECT_EQ(Content(), "abc");
  SetFreeBytes(-1);
  EXPECT_THAT(Write(*writer, 7, "defg"), IsOk());
  SetFreeBytes(0);
  const DiskAnswers none(DiskAnswer::kNoBlocks);
  EXPECT_THAT(Write(*writer, 11, "h"), IsOk()) << "a disk that does not say what it has left";
}

// Other ranks of the host write at the same time: each looks again before its next megabyte.
TEST_F(PartWriterTest, AWriteOfManyBytesEndsWhereTheJournalsPartBegins) {
  constexpr int64_t kMegabyte = 1 << 20, kLeft = 64 * kMegabyte;
  auto writer = Open();
  ASSERT_THAT(writer, IsOk());
  SetFreeBytes(kLeft + 2 * kMegabyte);
  const absl::Status status = Write(*writer, 0, std::string(4 * kMegabyte, 'x'));
  EXPECT_TRUE(HasReason(status, Reason::kDiskFull)) << status;
  EXPECT_EQ(std::filesystem::file_size(folder_ / "file"), 2u * kMegabyte);
}

TEST_F(PartWriterTest, OnlyARegularFileIsWritten) {
  std::filesystem::create_symlink(folder_ / "elsewhere", folder_ / "file");
  EXPECT_THAT(Open(), Invalid("it is a link"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "elsewhere"));
  std::filesystem::remove(folder_ / "file");
  ASSERT_EQ(mkfifo((folder_ / "file").c_str(), 0600), 0);
  const int reader = open((folder_ / "file").c_str(), O_RDONLY | O_NONBLOCK);
  EXPECT_THAT(Open(), Invalid("not a regular file"));
  close(reader);
  EXPECT_FALSE(Open().ok()) << "and one that nobody reads does not hold us";
  EXPECT_THAT(PartWriter::Open(folder_ / "none", "file", 0), StatusIs(absl::StatusCode::kNotFound, HasSubstr("none")));
}

}  // namespace
}  // namespace stemma::testing
