// kill -9 between any two steps of a save or a removal leaves the older checkpoint whole, and the newer one whole or
// not at all; what is said to be durable was synced, in the right order.
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/error.h"
#include "tests/server/store/checkpoint_files.h"
#include "tests/server/store/sync_calls.h"
#include "tests/testing/status_matchers.h"

namespace stemma::server {
namespace {

using ::testing::ElementsAre;
using testing::IsOk;
using ::testing::StartsWith;
using testing::StatusIs;
using testing::TempFolder;

namespace fs = std::filesystem;

// Runs it in a child. Returns its wait status.
template <typename Function>
int StatusOfChild(const Function& function) {
  const pid_t child = fork();
  if (child == 0) {
    function();
    _exit(0);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return status;
}

// Opens what a killed process left: the old checkpoint is whole; the new one too, or it is not there.
void ExpectOldAndMaybeNew(const std::string& directory, bool has_new, const std::string& what) {
  const absl::StatusOr<CheckpointStore> store = CheckpointStore::Open(directory);
  ASSERT_THAT(store, IsOk()) << what;
  const absl::StatusOr<ScannedCheckpoints> found = store->Scan();
  ASSERT_THAT(found, IsOk()) << what;
  ASSERT_EQ(found->checkpoints.size(), has_new ? 2u : 1u) << what;
  EXPECT_EQ(found->checkpoints[0].manifest.name(), "old");
  for (const StoredCheckpoint& stored : found->checkpoints) {
    const std::string& name = stored.manifest.name();
    EXPECT_THAT(store->Verify(name, stored.manifest_sha256), IsOk()) << what;
    EXPECT_EQ(store->Verify(name, "")->client_state, "state of " + name) << what;
  }
  for (const auto& entry : fs::directory_iterator(directory + "/checkpoints")) {
    EXPECT_NE(entry.path().filename().string()[0], '.') << what << " leaves " << entry.path();
  }
}

TEST(CheckpointCrashTest, AKillAtEachPlaceLeavesTheOldOneAndTheNewOneWholeOrNotAtAll) {
  for (const auto& [place, has_new] : {std::pair("ckpt.before_manifest", false),
                                       {"ckpt.after_manifest", false},
                                       {"ckpt.before_rename", false},
                                       {"ckpt.after_rename", true}}) {
    const TempFolder folder, places;
    const CheckpointStore store = *CheckpointStore::Open(folder.path());
    ASSERT_THAT(CommitSave(store, folder.path(), MakeSave("old", 1, 1), "state of old"), IsOk());
    SetBytes(places / (std::string(place) + "@0"), "kill");
    const int status = StatusOfChild([&] {
      setenv("STEMMA_FAILPOINTS", places.path().c_str(), 1);
      CommitSave(store, folder.path(), MakeSave("new", 2, 2), "state of new").IgnoreError();
    });
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << place << " was not passed: " << status;
    ExpectOldAndMaybeNew(folder.path(), has_new, place);
  }
}

// The times are drawn: also inside the writing, the reading back and the removal.
TEST(CheckpointCrashTest, AKillAtAnyTimeLeavesTheOldOneAndTheNewOneWholeOrNotAtAll) {
  constexpr uint64_t kSeed = 9;
  const TempFolder folder;
  SplitMix64 random(kSeed);
  ASSERT_THAT(CommitSave(*CheckpointStore::Open(folder.path()), folder.path(), MakeSave("old", 1, 1), "state of old"),
              IsOk());
  int found_new = 0;
  constexpr int kKills = 60;
  for (int kill_index = 0; kill_index < kKills; ++kill_index) {
    const pid_t child = fork();
    if (child == 0) {
      const absl::StatusOr<CheckpointStore> store = CheckpointStore::Open(folder.path());
      while (store.ok()) {
        if (!CommitSave(*store, folder.path(), MakeSave("new", 2, 2, 300000), "state of new").ok()) _exit(1);
        const absl::StatusOr<std::string> retired = store->Retire("new");
        if (!retired.ok()) _exit(2);
        store->Abandon(*retired);
      }
      _exit(3);
    }
    RealClock().Sleep(absl::Microseconds(random.Next() % 30000));
    kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the child ended by itself: " << status;
    const bool has_new = fs::exists(folder / "checkpoints/new");
    ExpectOldAndMaybeNew(folder.path(), has_new, "seed 9, kill " + std::to_string(kill_index));
    ASSERT_FALSE(HasFatalFailure());
    found_new += has_new ? 1 : 0;
    fs::remove_all(folder / "checkpoints/new");
  }
  RecordProperty("found_new", found_new);
}

class CheckpointSyncTest : public ::testing::Test {
 protected:
  CheckpointSyncTest() { TakeSyncedFiles(); }
  ~CheckpointSyncTest() override { FailSyncsOf("", 0); }

  const TempFolder folder_;
  const CheckpointStore store_ = *CheckpointStore::Open(folder_.path());
};

TEST_F(CheckpointSyncTest, FilesThenTheManifestThenTheFoldersAreSynced) {
  ASSERT_THAT(CommitSave(store_, folder_.path(), MakeSave("a", 1, 1), "state"), IsOk());
  const std::vector<std::string> synced = TakeSyncedFiles();
  EXPECT_THAT(synced,
              ElementsAre("client_state", "tool_use.jinja", "client_state", "config.json", "empty", "model.safetensors",
                          "rank-0.safetensors", "rank-1.safetensors", "additional_chat_templates", "optim", ".tmp-a",
                          StartsWith(".manifest.json."), ".tmp-a", "checkpoints"));
  ASSERT_THAT(store_.Retire("a"), IsOk());
  EXPECT_THAT(TakeSyncedFiles(), ElementsAre("checkpoints"));
}

TEST_F(CheckpointSyncTest, AFailedSyncEndsTheSaveAndLeavesNothing) {
  ASSERT_THAT(CommitSave(store_, folder_.path(), MakeSave("old", 1, 1), "state of old"), IsOk());
  const DrawnSave save = MakeSave("new", 2, 2);
  for (const char* file : {"client_state", "config.json", "model.safetensors", "rank-1.safetensors", "/optim",
                           "/additional_chat_templates", "/.tmp-new", "/checkpoints"}) {
    for (const int error : {EIO, ENOSPC}) {
      const std::string temporary = WriteSave(store_, folder_.path(), save);
      FailSyncsOf(file, error);
      const absl::Status status = store_.Commit(temporary, save.manifest, "state of new").status();
      FailSyncsOf("", 0);
      EXPECT_EQ(ErrorReason(status), error == ENOSPC ? "DISK_FULL" : "") << file << ": " << status;
      EXPECT_FALSE(status.ok()) << file;
      ASSERT_FALSE(fs::exists(folder_ / "checkpoints/.tmp-new")) << file;
      ASSERT_FALSE(fs::exists(folder_ / "checkpoints/new")) << file;
    }
  }
  EXPECT_THAT(store_.Verify("old", ""), IsOk());
  FailSyncsOf("/checkpoints", EIO);
  EXPECT_THAT(store_.Retire("old"), StatusIs(absl::StatusCode::kInternal, ::testing::HasSubstr("checkpoints")));
}

}  // namespace
}  // namespace stemma::server
