// A folder that was moved, and that of another run in its place: neither gets files of this one, nor loses its own.
#include "common/base/held_folder.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <string>

#include "server/store/checkpoint_store.h"
#include "tests/server/store/checkpoint_files.h"
#include "tests/testing/status_matchers.h"

namespace stemma::server {
namespace {

using ::testing::HasSubstr;
using testing::IsOk;
using testing::StatusIs;
using testing::TempFolder;

namespace fs = std::filesystem;

auto IsGone() { return StatusIs(absl::StatusCode::kInternal, HasSubstr("is not there any more: put it back")); }

auto IsRefused() {
  return StatusIs(absl::StatusCode::kInternal, HasSubstr("another folder than the one that was opened"));
}

TEST(HeldFolderTest, AnotherFolderIsToldAndItsReturn) {
  const TempFolder folder;
  fs::create_directories(folder / "a/b");
  const absl::StatusOr<HeldFolder> held = HeldFolder::Open(folder / "a/b");
  ASSERT_THAT(held, IsOk());
  EXPECT_THAT(held->Check(), IsOk());
  fs::rename(folder / "a", folder / "moved");
  EXPECT_THAT(held->Check(), IsGone());
  SetBytes(folder / "a", "a file");
  EXPECT_THAT(held->Check(), IsGone());
  fs::remove(folder / "a");
  fs::create_directories(folder / "a/b");
  EXPECT_THAT(held->Check(), IsRefused());
  fs::remove_all(folder / "a");
  fs::create_directory_symlink(folder / "moved", folder / "a");
  EXPECT_THAT(held->Check(), IsOk()) << "by a link";
  EXPECT_TRUE(absl::IsNotFound(HeldFolder::Open(folder / "none").status()));
}

// The topmost folders of disks have one number mostly.
TEST(HeldFolderTest, TheSameNumberOnAnotherDiskIsAnotherFolder) {
  const TempFolder folder;
  struct stat a, b;
  ASSERT_TRUE(stat("/proc", &a) == 0 && stat("/sys", &b) == 0);
  if (a.st_ino != b.st_ino || a.st_dev == b.st_dev) GTEST_SKIP() << "/proc and /sys are no such folders here";
  fs::create_directory_symlink("/proc", folder / "disk");
  const absl::StatusOr<HeldFolder> held = HeldFolder::Open(folder / "disk");
  ASSERT_THAT(held, IsOk());
  EXPECT_THAT(held->Check(), IsOk());
  fs::remove(folder / "disk");
  fs::create_directory_symlink("/sys", folder / "disk");
  EXPECT_THAT(held->Check(), IsRefused());
}

// An older copy of the folder lacks what was saved since: that is not damaged, and steps are not given up for it.
TEST(HeldFolderTest, AnotherFolderSaysNothingOfACheckpoint) {
  const TempFolder folder;
  const CheckpointStore store = *CheckpointStore::Open(folder.path());
  ASSERT_THAT(CommitSave(store, folder.path(), MakeSave("own", 1, 1), ""), IsOk());
  ASSERT_THAT(store.Verify("own", ""), IsOk());
  fs::rename(folder / "checkpoints", folder / "moved");
  EXPECT_THAT(store.Verify("own", "").status(), IsGone());
  EXPECT_THAT(store.CheckModel("own", ModelConfig()), IsGone());
  EXPECT_THAT(store.Retire("own").status(), IsGone()) << "it is not removed";
  EXPECT_THAT(store.Begin("next").status(), IsGone());
  fs::create_directories(folder / "checkpoints/own");
  EXPECT_THAT(store.Verify("own", "").status(), IsRefused());
  EXPECT_THAT(store.CheckModel("own", ModelConfig()), IsRefused());
  fs::remove_all(folder / "checkpoints");
  fs::rename(folder / "moved", folder / "checkpoints");
  const auto swapped_while_it_is_read = [&](uint64_t) {
    fs::rename(folder / "checkpoints", folder / "moved");
    fs::create_directory(folder / "checkpoints");
    return false;
  };
  EXPECT_THAT(store.Verify("own", "", swapped_while_it_is_read).status(), IsRefused());
}

// --data may be a link, and be pointed at the next run while this one's server still runs.
TEST(HeldFolderTest, ALinkThatIsPointedElsewhereLeadsToAnotherFolder) {
  const TempFolder folder;
  for (const char* run : {"one", "two"}) {
    fs::create_directory(folder / run);
    ASSERT_THAT(CheckpointStore::Open(folder / run), IsOk());
  }
  fs::create_directory_symlink("one", folder / "data");
  const CheckpointStore store = *CheckpointStore::Open(folder / "data");
  EXPECT_THAT(store.Begin("next"), IsOk());
  fs::remove(folder / "data");
  fs::create_directory_symlink("two", folder / "data");
  EXPECT_THAT(store.Begin("next").status(), IsRefused());
}

TEST(HeldFolderTest, CheckpointsOfAnotherRunAreLeftAlone) {
  const TempFolder folder;
  const CheckpointStore store = *CheckpointStore::Open(folder.path());
  ASSERT_THAT(CommitSave(store, folder.path(), MakeSave("own", 1, 1), ""), IsOk());
  ASSERT_EQ(*store.Begin("begun"), ".tmp-begun");
  fs::rename(folder / "checkpoints", folder / "moved");
  for (const char* name : {"own", ".tmp-begun"}) fs::create_directories(folder / ("checkpoints/" + std::string(name)));
  EXPECT_THAT(store.Begin("next").status(), IsRefused());
  EXPECT_THAT(store.Commit(".tmp-begun", MakeSave("begun", 1, 2).manifest, "").status(), IsRefused());
  EXPECT_THAT(store.Retire("own").status(), IsRefused());
  store.Abandon(".tmp-begun");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder / "checkpoints"), fs::directory_iterator()), 2);
}

}  // namespace
}  // namespace stemma::server
