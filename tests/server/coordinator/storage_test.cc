// What the server's start makes of rows whose chain is whole: it goes on from them, or says which of them makes no
// sense.
#include "server/coordinator/storage.h"

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "common/base/mesh.h"
#include "gtest/gtest.h"
#include "tests/server/store/checkpoint_files.h"
#include "tests/server/store/drawn_requests.h"
#include "tests/testing/status_matchers.h"

namespace stemma::server {
namespace {

using internal::v1::JournalRow;
using ::testing::HasSubstr;
using testing::IsOk;
using testing::StatusIs;
using testing::TempFolder;

constexpr uint64_t kRequestsKept = 4;

JournalRow Started(uint64_t epoch) {
  JournalRow row;
  row.mutable_started()->set_epoch(epoch);
  return row;
}

absl::StatusOr<std::unique_ptr<Storage>> OpenWith(const std::string& folder, const std::vector<std::string>& bodies) {
  {
    absl::StatusOr<Journal> journal = Journal::Open(folder);
    EXPECT_THAT(journal, IsOk());
    for (const std::string& body : bodies) {
      EXPECT_THAT(journal->Append(journal->last_n() + 1, body, /*settles=*/true), IsOk());
    }
  }
  return Storage::Open(folder, kRequestsKept);
}

TEST(StorageTest, RowsAreFolded) {
  const TempFolder folder;
  const auto storage = OpenWith(folder.path(), {Started(1).SerializeAsString(), Started(2).SerializeAsString()});
  ASSERT_THAT(storage, IsOk());
  EXPECT_EQ((*storage)->state().epoch(), 2u);
  EXPECT_EQ((*storage)->last_row(), 2u);
}

// A start without them would give their steps up for good, so that mounting the folder later came too late.
TEST(StorageTest, AJournalWhoseCheckpointsAreAllMissingIsRefused) {
  JournalRow row;
  internal::v1::JournalState& state = *row.mutable_snapshot();
  state.set_epoch(1);
  state.set_lineage("L-1");
  state.set_step(5);
  state.set_weight_version(6);
  for (const char* name : {"first", "second"}) {
    internal::v1::KnownCheckpoint& known = *state.add_checkpoints();
    known.set_name(name);
    known.set_lineage("L-1");
    known.set_step(5);
    known.set_weight_version(6);
  }
  const TempFolder folder;
  EXPECT_THAT(OpenWith(folder.path(), {row.SerializeAsString()}).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("none of the checkpoints")));
  std::filesystem::create_directory(folder.path() + "/checkpoints/none");
  EXPECT_THAT(Storage::Open(folder.path(), kRequestsKept).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("as second: the 5 steps")));
  ASSERT_THAT(CommitSave(*CheckpointStore::Open(folder.path()), folder.path(), MakeSave("first", 1, 5), ""), IsOk());
  const auto storage = Storage::Open(folder.path(), kRequestsKept);
  ASSERT_THAT(storage, IsOk()) << "one of them is enough";
  EXPECT_EQ((*storage)->found().size(), 1u);
  EXPECT_THAT((*storage)->other_folders(), ::testing::ElementsAre("none"));
}

TEST(StorageTest, RowsThatMakeNoSenseAreRefused) {
  JournalRow nameless;
  nameless.mutable_snapshot()->add_requests();
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{Started(1).SerializeAsString(), "\xff\xff"}, "row 2"},
      {{Started(2).SerializeAsString(), Started(1).SerializeAsString()}, "epoch 1 follows 2"},
      {{Started(UINT64_MAX).SerializeAsString()}, "makes no sense"},
      {{nameless.SerializeAsString()}, "makes no sense"},
  };
  for (const auto& [bodies, what] : cases) {
    const TempFolder folder;
    const absl::Status status = OpenWith(folder.path(), bodies).status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << what << ": " << status;
    EXPECT_TRUE(absl::StrContains(status.message(), what)) << what << ": " << status;
  }
}

// A journal that is an old copy names none of the newest requests; they are there when the newest comes back.
TEST(StorageTest, ARefusedJournalLeavesTheRequestsThatItDoesNotName) {
  const TempFolder folder;
  JournalRow begun;
  begun.mutable_lineage_begun()->set_name("L");
  ASSERT_THAT(OpenWith(folder.path(), {Started(1).SerializeAsString(), begun.SerializeAsString()}), IsOk());
  const std::string kept = folder / "spool/1-1";
  {
    const auto spool = Spool::Open(folder.path());
    ASSERT_THAT(spool, IsOk());
    ASSERT_THAT(spool->Write("1-1", DrawnRequest(1, 1, 10), DrawnPlan(1, 1), MakeMesh({.dp = 1})), IsOk());
    const auto store = CheckpointStore::Open(folder.path());
    ASSERT_THAT(store, IsOk());
    DrawnSave save = MakeSave("ahead", 1, 1);
    save.manifest.set_lineage("L");
    save.manifest.set_journal_row(3);
    ASSERT_THAT(CommitSave(*store, folder.path(), save, ""), IsOk());
  }
  const absl::Status status = Storage::Open(folder.path(), kRequestsKept).status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "old copy")) << status;
  EXPECT_TRUE(std::filesystem::exists(kept));
  std::filesystem::remove_all(folder / "checkpoints/ahead");
  ASSERT_THAT(Storage::Open(folder.path(), kRequestsKept), IsOk());
  EXPECT_FALSE(std::filesystem::exists(kept)) << "control: no row of a journal that is taken names it";
}

}  // namespace
}  // namespace stemma::server
