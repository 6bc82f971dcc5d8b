// A folder that was moved, and that of another run in its place: neither gets files of this one, nor loses its own.
#include "common/base/held_folder.h"

#include <gtest/gtest.h>

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
  EXPECT_THAT(held->Check(), IsOk()) << "whoever uses the path hears that it leads nowhere";
  fs::create_directories(folder / "a/b");
  EXPECT_THAT(held->Check(), IsRefused());
  fs::remove_all(folder / "a");
  fs::create_directory_symlink(folder / "moved", folder / "a");
  EXPECT_THAT(held->Check(), IsOk()) << "by a link";
  EXPECT_TRUE(absl::IsNotFound(HeldFolder::Open(folder / "none").status()));
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
