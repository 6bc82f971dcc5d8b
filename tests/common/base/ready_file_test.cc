#include "common/base/ready_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

#include "common/base/file.h"
#include "common/base/temporary_file.h"
#include "common/base/temporary_folder.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace stemma {
namespace {

namespace fs = std::filesystem;
using testing::Invalid;
using testing::IsOk;

std::string TextOfFile(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadFile(path, 1 << 20);
  return text.ok() ? *text : std::string(text.status().message());
}

size_t CountIn(const std::string& folder) {
  return static_cast<size_t>(std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

TEST(ReadyFileTest, IsThereWholeWhileItsOwnerLives) {
  const testing::TempFolder folder;
  const std::string path = folder / "ready";
  {
    const absl::StatusOr<ReadyFile> file = ReadyFile::Write(path, "127.0.0.1:1\nworkers 127.0.0.1:2\n");
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ(TextOfFile(path), "127.0.0.1:1\nworkers 127.0.0.1:2\n");
    EXPECT_THAT(ReadyFile::Check(path), Invalid("of a server that runs"));
    EXPECT_THAT(ReadyFile::Write(path, "127.0.0.1:9\n").status(), Invalid("of a server that runs"));
    EXPECT_EQ(CountIn(folder.path()), 1u);
  }
  EXPECT_EQ(CountIn(folder.path()), 0u);
}

TEST(ReadyFileTest, AFileThatSomebodyElsePutThereMeanwhileStays) {
  const testing::TempFolder folder;
  const std::string path = folder / "ready";
  absl::StatusOr<ReadyFile> file = ReadyFile::Write(path, "127.0.0.1:1\n");
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_THAT(ReplaceFile(path, "another's\n"), IsOk());
  file->Remove();
  EXPECT_EQ(TextOfFile(path), "another's\n");
}

// Else whoever waits for the new process reads the addresses of the one before.
TEST(ReadyFileTest, WhatADeadServerLeftIsClearedAndNothingElseIs) {
  const testing::TempFolder folder;
  const std::string path = folder / "ready";
  EXPECT_THAT(ReadyFile::Clear(path), IsOk()) << "nothing is there";
  ASSERT_THAT(ReplaceFile(path, "127.0.0.1:1\nworkers 127.0.0.1:2\n"), IsOk());
  EXPECT_THAT(ReadyFile::Clear(path), IsOk());
  EXPECT_EQ(CountIn(folder.path()), 0u);
  ASSERT_THAT(ReplaceFile(path, "precious\n"), IsOk());
  EXPECT_THAT(ReadyFile::Clear(path), Invalid("left as it is"));
  EXPECT_EQ(TextOfFile(path), "precious\n");
  fs::remove(path);
  const absl::StatusOr<ReadyFile> running = ReadyFile::Write(path, "127.0.0.1:1\n");
  ASSERT_TRUE(running.ok()) << running.status();
  EXPECT_THAT(ReadyFile::Clear(path), Invalid("of a server that runs"));
  EXPECT_EQ(TextOfFile(path), "127.0.0.1:1\n");
}

TEST(ReadyFileTest, WhatADeadServerLeftIsReplacedAndNothingElseIs) {
  const testing::TempFolder folder;
  for (const char* left : {"", "127.0.0.1:1\n", "[::1]:1\nworkers localhost:2\nops 127.0.0.1:3\n", "host:0"}) {
    ASSERT_THAT(ReplaceFile(folder / "ready", left), IsOk());
    EXPECT_THAT(ReadyFile::Check(folder / "ready"), IsOk()) << left;
  }
  for (const std::string& other :
       {std::string("precious\n"), std::string("\n"), std::string("127.0.0.1:1\n\n127.0.0.1:1\n"),
        std::string("a b 127.0.0.1:1\n"), std::string(5000, 'x')}) {
    ASSERT_THAT(ReplaceFile(folder / "ready", other), IsOk());
    EXPECT_THAT(ReadyFile::Check(folder / "ready"), Invalid("left as it is")) << other;
    EXPECT_FALSE(ReadyFile::Write(folder / "ready", "127.0.0.1:1\n").ok());
    EXPECT_EQ(TextOfFile(folder / "ready"), other);
  }
  fs::create_directory(folder / "folder");
  EXPECT_THAT(ReadyFile::Check(folder / "folder"), Invalid("is no file"));
  fs::create_symlink(folder / "nowhere", folder / "link");
  EXPECT_THAT(ReadyFile::Check(folder / "link"), Invalid("is no file"));
  EXPECT_THAT(ReadyFile::Check(folder / "no/ready"), Invalid("cannot be written"));
  EXPECT_THAT(ReadyFile::Check(folder / "ready/below"), Invalid("cannot be written"));
}

TEST(TemporaryFileTest, ReplacesWholeOrLeavesWhatWasThere) {
  const testing::TempFolder folder;
  ASSERT_THAT(ReplaceFile(folder / "a", "first"), IsOk());
  {
    absl::StatusOr<TemporaryFile> one = TemporaryFile::Create(folder / "a");
    absl::StatusOr<TemporaryFile> two = TemporaryFile::Create(folder / "a");
    ASSERT_TRUE(one.ok() && two.ok());
    ASSERT_THAT(one->Write("half"), IsOk());
    ASSERT_THAT(two->Write("second"), IsOk());
    ASSERT_THAT(two->Commit(), IsOk());
  }
  EXPECT_EQ(TextOfFile(folder / "a"), "second");
  EXPECT_EQ(CountIn(folder.path()), 1u) << "the one that was not committed is gone";
  fs::create_directory(folder / "taken");
  EXPECT_FALSE(ReplaceFile(folder / "taken", "x").ok());
  EXPECT_FALSE(ReplaceFile(folder / "no/a", "x").ok());
  EXPECT_EQ(CountIn(folder.path()), 2u);
}

TEST(TemporaryFileTest, IsKnownByItsName) {
  const testing::TempFolder folder;
  const absl::StatusOr<TemporaryFile> file = TemporaryFile::Create(folder / "a.b.json");
  ASSERT_TRUE(file.ok());
  ASSERT_EQ(CountIn(folder.path()), 1u);
  EXPECT_EQ(TargetOfTemporary(fs::directory_iterator(folder.path())->path().filename().string()), "a.b.json");
  EXPECT_EQ(TargetOfTemporary(".a.Xy12Za"), "a");
  for (const char* other : {"", ".", "..", "a.Xy12Za", ".Xy12Za", ".a.Xy12Z", ".a.Xy12Zab", ".hidden", ".a"}) {
    EXPECT_EQ(TargetOfTemporary(other), "") << other;
  }
}

TEST(TemporaryFolderTest, AppearsWholeAndNeverOverWhatIsThere) {
  const testing::TempFolder folder;
  const std::string target = folder / "exports/a";
  {
    absl::StatusOr<TemporaryFolder> left = TemporaryFolder::Create(target);
    absl::StatusOr<TemporaryFolder> one = TemporaryFolder::Create(target);
    absl::StatusOr<TemporaryFolder> two = TemporaryFolder::Create(target);
    ASSERT_TRUE(left.ok() && one.ok() && two.ok());
    std::ofstream(left->path() + "/x") << "half";
    std::ofstream(one->path() + "/x") << "one";
    ASSERT_THAT(one->Commit(), IsOk());
    EXPECT_TRUE(absl::IsAlreadyExists(two->Commit()));
  }
  EXPECT_EQ(TextOfFile(target + "/x"), "one");
  EXPECT_EQ(CountIn(folder / "exports"), 1u);
}

}  // namespace
}  // namespace stemma
