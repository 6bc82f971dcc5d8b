// What saves and removals that were cut short leave in the folder of the checkpoints: the next start removes it, where
// that can be done, and starts all the same.
#include <sys/types.h>
#include <unistd.h>

#include <filesystem>
#include <iterator>
#include <string>

#include "gtest/gtest.h"
#include "server/store/checkpoint_store.h"
#include "tests/server/store/checkpoint_files.h"
#include "tests/testing/status_matchers.h"

namespace stemma::server {
namespace {

using testing::IsOk;
using testing::TempFolder;

namespace fs = std::filesystem;

class LeftoversTest : public ::testing::Test {
 protected:
  std::string Path(const std::string& name) const { return folder_ / ("checkpoints/" + name); }
  size_t NumEntries() const {
    return static_cast<size_t>(std::distance(fs::directory_iterator(Path("")), fs::directory_iterator()));
  }

  const TempFolder folder_;
  const CheckpointStore store_ = *CheckpointStore::Open(folder_.path());
};

TEST_F(LeftoversTest, OpenRemovesWhatWasLeftUnfinishedAndNothingElse) {
  ASSERT_THAT(CommitSave(store_, folder_.path(), MakeSave("whole", 1, 1), "state"), IsOk());
  const auto whole = TreeOf(Path("whole"));
  WriteSave(store_, folder_.path(), MakeSave("cut", 2, 2));
  ASSERT_THAT(CommitSave(store_, folder_.path(), MakeSave("retired", 1, 1), ""), IsOk());
  ASSERT_THAT(store_.Retire("retired"), IsOk());
  fs::create_directory_symlink(Path("whole"), Path(".tmp-link"));
  SetBytes(Path("tmp-mine"), "stays");
  ASSERT_EQ(NumEntries(), 5u);
  ASSERT_THAT(CheckpointStore::Open(folder_.path()), IsOk());
  EXPECT_EQ(NumEntries(), 2u);
  EXPECT_TRUE(TreeOf(Path("whole")) == whole) << "what a link leads to stays";
  EXPECT_EQ(BytesOf(Path("tmp-mine")), "stays");
}

// As where somebody made a file in it immutable, or it is another user's.
TEST_F(LeftoversTest, WhatCannotBeRemovedStaysAndTheRestGoes) {
  constexpr uid_t kNobody = 65534;
  for (const char* name : {".tmp-a", ".tmp-b"}) {
    fs::create_directory(Path(name));
    SetBytes(Path(name) + "/file", "half");
  }
  for (const std::string& path : {folder_.path(), Path("")}) fs::permissions(path, fs::perms(0777));
  fs::permissions(Path(".tmp-a"), fs::perms(0555));
  fs::permissions(Path(".tmp-b"), fs::perms(0777));
  const uid_t user = geteuid();
  ASSERT_EQ(seteuid(user == 0 ? kNobody : user), 0);
  const absl::Status opened = CheckpointStore::Open(folder_.path()).status();
  ASSERT_EQ(seteuid(user), 0);
  fs::permissions(Path(".tmp-a"), fs::perms(0777));
  EXPECT_THAT(opened, IsOk());
  EXPECT_TRUE(fs::exists(Path(".tmp-a/file")));
  EXPECT_EQ(NumEntries(), 1u);
  EXPECT_THAT(CheckpointStore::Open(folder_.path()), IsOk());
  EXPECT_EQ(NumEntries(), 0u);
}

}  // namespace
}  // namespace stemma::server
