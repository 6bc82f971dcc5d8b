// Folders that are made, and checkpoints and exports that are removed, beside the coordinator.
#include "server/coordinator/checkpoint_folder_thread.h"

#include <filesystem>
#include <fstream>
#include <future>
#include <map>
#include <string>

#include "common/base/clock.h"
#include "gtest/gtest.h"
#include "tests/server/store/checkpoint_files.h"
#include "tests/testing/status_matchers.h"

namespace stemma::server {
namespace {

class CheckpointFolderThreadTest : public ::testing::Test {
 protected:
  std::string Path(const std::string& name) const { return folder_ / ("checkpoints/" + name); }

  const testing::TempFolder folder_;
  const CheckpointStore store_ = *CheckpointStore::Open(folder_.path());
  std::map<uint64_t, absl::Status> made_;
  std::map<std::string, absl::Status> removed_;
  CheckpointFolderThread folders_{&store_, [this](Event event) {
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
  folders_.Stop();
  ASSERT_EQ(made_.size(), 2u);
  EXPECT_THAT(made_[1], testing::IsOk());
  EXPECT_TRUE(std::filesystem::is_directory(Path(".tmp-save-1-1/optim")));
  EXPECT_TRUE(absl::IsInvalidArgument(made_[2])) << made_[2];
  ASSERT_EQ(removed_.size(), 2u);
  EXPECT_THAT(removed_["a"], testing::IsOk());
  EXPECT_FALSE(std::filesystem::exists(Path("a"))) << "the next server would find it";
  EXPECT_TRUE(absl::IsNotFound(removed_["none"])) << removed_["none"];
}

TEST(CheckpointFilesTest, WhatTheDiskDoesNotEndIsSaidAfterTheTimeThatStopMayTake) {
  const testing::TempFolder folder;
  const CheckpointStore store = *CheckpointStore::Open(folder.path());
  std::promise<void> begun, go_on;
  int ended = 0;
  CheckpointFolderThread thread(&store, [&](const Event&) {
    if (++ended > 1) return;
    begun.set_value();
    go_on.get_future().wait();
  });
  thread.Add(RemoveCheckpointAction{"one"});
  thread.Add(RemoveCheckpointAction{"two"});
  begun.get_future().wait();
  EXPECT_EQ(thread.StopBy(StopDeadlineIn(absl::Milliseconds(1))), "removing checkpoint one");
  go_on.set_value();
  EXPECT_EQ(thread.StopBy(absl::InfiniteFuture()), "");
  EXPECT_EQ(ended, 2) << "what was added before is carried out";
}

// Whoever deletes the second waits for its name alone.
TEST(CheckpointFilesTest, FilesGoAfterEveryNameThatIsToBeFree) {
  constexpr double kPatienceS = 60;
  const testing::TempFolder folder;
  const CheckpointStore store = *CheckpointStore::Open(folder.path());
  const std::filesystem::path checkpoints = folder / "checkpoints";
  for (const char* name : {"a", "b"})
    ASSERT_THAT(CommitSave(store, folder.path(), MakeSave(name, 1, 1), ""), testing::IsOk());
  ASSERT_THAT(store.Begin("save-1-1"), testing::IsOk());
  CheckpointFolderThread* adds_to = nullptr;
  int ended = 0;
  std::promise<void> begin;
  std::shared_future<void> begun = begin.get_future().share();
  CheckpointFolderThread thread(&store, [&](const Event& event) {
    begun.wait();
    const auto& removed = std::get<CheckpointRemovedEvent>(event);
    EXPECT_THAT(removed.removed, testing::IsOk());
    if (++ended == 1) adds_to->Add(RemoveCheckpointAction{"b"});
    EXPECT_TRUE(std::filesystem::exists(checkpoints / ".tmp-a~")) << removed.name;
    EXPECT_TRUE(std::filesystem::exists(checkpoints / ".tmp-save-1-1")) << removed.name;
  });
  adds_to = &thread;
  thread.Add(RemoveCheckpointAction{"a"});
  thread.Add(DropSaveAction{".tmp-save-1-1"});
  begin.set_value();
  const double begun_s = RealClock().MonotonicSeconds();
  while (!std::filesystem::is_empty(checkpoints)) {
    ASSERT_LT(RealClock().MonotonicSeconds(), begun_s + kPatienceS) << "files stay";
    RealClock().Sleep(absl::Milliseconds(1));
  }
  thread.Stop();
  EXPECT_EQ(ended, 2);
}

TEST(CheckpointFilesTest, WhatIsLeftOfAnExportGoesToo) {
  constexpr double kPatienceS = 60;
  const testing::TempFolder folder;
  const CheckpointStore store = *CheckpointStore::Open(folder.path());
  std::filesystem::create_directories(folder / "exports/.tmp-w-a1B2c3/deep");
  std::filesystem::create_directories(folder / "exports/w");
  CheckpointFolderThread thread(&store, [](const Event&) { FAIL() << "nobody asked"; });
  thread.Add(RemovePathWork{folder / "exports/.tmp-w-a1B2c3"});
  const double begun_s = RealClock().MonotonicSeconds();
  while (std::filesystem::exists(folder / "exports/.tmp-w-a1B2c3")) {
    ASSERT_LT(RealClock().MonotonicSeconds(), begun_s + kPatienceS) << "it stays";
    RealClock().Sleep(absl::Milliseconds(1));
  }
  EXPECT_TRUE(std::filesystem::exists(folder / "exports/w"));
}

// A file or a link that somebody has put there is no export.
TEST(CheckpointFilesTest, AnExportThatIsRemovedIsAnsweredWhenItsNameIsFree) {
  namespace fs = std::filesystem;
  constexpr double kPatienceS = 60;
  const testing::TempFolder folder;
  const CheckpointStore store = *CheckpointStore::Open(folder.path());
  const std::string exports = folder / "exports";
  for (const char* name : {"a/deep", "b"}) fs::create_directories(fs::path(exports) / name);
  std::ofstream(folder / "exports/file") << "mine";
  fs::create_directory_symlink(folder / "exports/b", folder / "exports/link");
  std::map<CallId, absl::Status> removed;
  CheckpointFolderThread thread(&store, [&](const Event& event) {
    const auto& ended = std::get<ExportRemovedEvent>(event);
    removed[ended.call] = ended.removed;
    EXPECT_FALSE(ended.removed.ok() && fs::exists(exports + "/" + ended.name)) << ended.name;
  });
  CallId call = 0;
  for (const char* name : {"a", "none", "file", "link"}) thread.Add(RemoveExportWork{++call, exports, name});
  const double begun_s = RealClock().MonotonicSeconds();
  while (fs::exists(exports + "/a") || fs::exists(exports + "/.tmp-a~")) {
    ASSERT_LT(RealClock().MonotonicSeconds(), begun_s + kPatienceS) << "its files stay";
    RealClock().Sleep(absl::Milliseconds(1));
  }
  thread.Stop();
  ASSERT_EQ(removed.size(), 4u);
  EXPECT_THAT(removed[1], testing::IsOk());
  for (const CallId no_export : {2, 3, 4}) EXPECT_TRUE(absl::IsNotFound(removed[no_export])) << removed[no_export];
  EXPECT_TRUE(fs::exists(exports + "/b") && fs::exists(exports + "/file") && fs::exists(exports + "/link"));
}

}  // namespace
}  // namespace stemma::server
