// Folders that are made and checkpoints that are removed beside the coordinator.
#include "server/coordinator/checkpoint_folder_thread.h"

#include <filesystem>
#include <map>
#include <string>

#include "gtest/gtest.h"
#include "tests/server/store/checkpoint_files.h"
#include "tests/testing/status_matchers.h"

namespace stemma::server {
namespace {

class CheckpointFolderThreadTest : public ::testing::Test {
 protected:
  // As the coordinator ends them.
  void Stop() {
    folders_.Stop();
    files_.Stop();
  }
  std::string Path(const std::string& name) const { return folder_ / ("checkpoints/" + name); }

  const testing::TempFolder folder_;
  const CheckpointStore store_ = *CheckpointStore::Open(folder_.path());
  std::map<uint64_t, absl::Status> made_;
  std::map<std::string, absl::Status> removed_;
  CheckpointThread files_{&store_, ModelConfig(), [](const Event&) {}};
  CheckpointFolderThread folders_{&store_, &files_, [this](Event event) {
                                    if (const auto* made = std::get_if<CheckpointFolderEvent>(&event)) {
                                      made_[made->id] = made->made;
                                    } else {
                                      const auto& removed = std::get<CheckpointRemovedEvent>(event);
                                      removed_[removed.name] = removed.removed;
                                    }
                                  }};
};

TEST_F(CheckpointFolderThreadTest, WhatWasAddedIsCarriedOutBeforeTheEnd) {
  ASSERT_THAT(CommitSave(store_, folder_.path(), MakeSave("a", 1, 1), ""), testing::IsOk());
  folders_.Add(MakeCheckpointFolderAction{.id = 1, .name = "save-1-1"});
  folders_.Add(MakeCheckpointFolderAction{.id = 2, .name = "no/name"});
  folders_.Add(RemoveCheckpointAction{"a"});
  folders_.Add(RemoveCheckpointAction{"none"});
  Stop();
  ASSERT_EQ(made_.size(), 2u);
  EXPECT_THAT(made_[1], testing::IsOk());
  EXPECT_TRUE(std::filesystem::is_directory(Path(".tmp-save-1-1/optim")));
  EXPECT_TRUE(absl::IsInvalidArgument(made_[2])) << made_[2];
  ASSERT_EQ(removed_.size(), 2u);
  EXPECT_THAT(removed_["a"], testing::IsOk());
  EXPECT_FALSE(std::filesystem::exists(Path("a"))) << "the next server would find it";
  EXPECT_TRUE(absl::IsNotFound(removed_["none"])) << removed_["none"];
}

}  // namespace
}  // namespace stemma::server
