// What is durable was synced, in the right order; a sync that failed is an error, and is not tried again.
#include "common/base/error.h"
#include "common/base/file_writer.h"
#include "common/base/mesh.h"
#include "common/base/temporary_folder.h"
#include "server/store/spool.h"
#include "tests/server/store/drawn_requests.h"
#include "tests/server/store/store_files.h"
#include "tests/server/store/sync_calls.h"
#include "tests/testing/status_matchers.h"

namespace stemma::server {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::IsOk;
using ::testing::StartsWith;
using testing::StatusIs;
using testing::TempFolder;

class SyncTest : public ::testing::Test {
 protected:
  SyncTest() { TakeSyncedFiles(); }
  ~SyncTest() override { FailSyncsOf("", 0); }

  const TempFolder folder_;
};

TEST_F(SyncTest, ANewJournalsFoldersAreSynced) {
  ASSERT_THAT(Journal::Open(folder_.path()), IsOk());
  const std::vector<std::string> synced = TakeSyncedFiles();
  const std::string root = std::filesystem::path(folder_.path()).filename().string();
  ASSERT_THAT(synced, AllOf(Contains(root), Contains("last")));
  EXPECT_EQ(synced.back(), "journal") << "the names of all files, when all are there";
}

TEST_F(SyncTest, ARowIsSyncedAndTheWitnessWithTheSettlingOnes) {
  absl::StatusOr<Journal> journal = Journal::Open(folder_.path());
  ASSERT_THAT(journal->Append(1, "a", /*settles=*/false), IsOk());
  TakeSyncedFiles();
  ASSERT_THAT(journal->Append(2, "b", /*settles=*/false), IsOk());
  EXPECT_THAT(TakeSyncedFiles(), ElementsAre("journal.db-wal"));
  ASSERT_THAT(journal->Append(3, "c", /*settles=*/true), IsOk());
  const std::vector<std::string> synced = TakeSyncedFiles();
  EXPECT_EQ(synced.front(), "journal.db-wal");
  EXPECT_THAT(synced, Contains("journal.db"));
  EXPECT_EQ(synced.back(), "last");
}

TEST_F(SyncTest, TheWitnessIsSyncedBeforeASnapshotReplacesItsRow) {
  absl::StatusOr<Journal> journal = Journal::Open(folder_.path());
  ASSERT_THAT(journal->Append(1, "a", /*settles=*/false), IsOk());
  TakeSyncedFiles();
  ASSERT_THAT(journal->Compact(2, "b"), IsOk());
  const std::vector<std::string> synced = TakeSyncedFiles();
  ASSERT_GE(synced.size(), 4u);
  EXPECT_EQ(synced[0], "last");
  EXPECT_EQ(synced[1], "journal.db-wal");
  EXPECT_EQ(synced.back(), "last");
}

TEST_F(SyncTest, AFailedSyncEndsTheJournalAndIsNotTriedAgain) {
  for (const char* file : {"journal.db-wal", "journal.db", "last"}) {
    const TempFolder folder;
    {
      absl::StatusOr<Journal> journal = Journal::Open(folder.path());
      ASSERT_THAT(journal->Append(1, "a", /*settles=*/true), IsOk());
      FailSyncsOf(file, EIO);
      const absl::Status status = journal->Append(2, "b", /*settles=*/true);
      EXPECT_FALSE(status.ok()) << file;
      EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(folder.path()), HasSubstr("Input/output error")));
      FailSyncsOf("", 0);
      TakeSyncedFiles();
      const uint64_t next = journal->last_n() + 1;
      EXPECT_EQ(journal->Append(next, "c", /*settles=*/true), status) << file;
      EXPECT_EQ(journal->Compact(next, "c"), status) << file;
    }
    EXPECT_THAT(TakeSyncedFiles(), IsEmpty()) << file << ": not when it ends either";
    absl::StatusOr<Journal> journal = Journal::Open(folder.path());
    ASSERT_THAT(journal, IsOk()) << file;
    EXPECT_THAT(journal->last_n(), ::testing::AnyOf(1u, 2u)) << file;
  }
}

// A killed server leaves rows in the page cache, where the next one reads them: a power cut may still take them.
TEST_F(SyncTest, OpenForcesTheRowsBeforeTheWitnessNamesThem) {
  {
    absl::StatusOr<Journal> journal = Journal::Open(folder_.path());
    ASSERT_THAT(journal->Append(1, "a", /*settles=*/true), IsOk());
  }
  const std::string witness = BytesOf(folder_ / "journal/last");
  {
    absl::StatusOr<Journal> journal = Journal::Open(folder_.path());
    ASSERT_THAT(journal->Append(2, "b", /*settles=*/false), IsOk());
  }
  SetBytes(folder_ / "journal/last", witness);
  for (const char* file : {"journal.db-wal", "journal.db"}) {
    FailSyncsOf(file, EIO);
    EXPECT_FALSE(Journal::Open(folder_.path()).ok()) << file;
    EXPECT_TRUE(BytesOf(folder_ / "journal/last") == witness) << file;
  }
  FailSyncsOf("", 0);
  EXPECT_EQ(Journal::Open(folder_.path())->last_n(), 2u) << "control";
  EXPECT_FALSE(BytesOf(folder_ / "journal/last") == witness) << "control";
}

TEST_F(SyncTest, ADiskThatFailsIsUnavailableAndAFullOneIsDiskFull) {
  absl::StatusOr<Journal> journal = Journal::Open(folder_.path());
  FailSyncsOf("journal.db-wal", EIO);
  EXPECT_THAT(journal->Append(1, "a", /*settles=*/false),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("journal.db")));
  journal = absl::CancelledError();
  FailSyncsOf("", 0);
  journal = Journal::Open(folder_.path());
  ASSERT_THAT(journal, IsOk());
  FailSyncsOf("journal.db-wal", ENOSPC);
  EXPECT_EQ(ErrorReason(journal->Append(journal->last_n() + 1, "a", /*settles=*/false)), "DISK_FULL");
}

TEST_F(SyncTest, ASpooledRequestIsSyncedBeforeItsFolder) {
  const absl::StatusOr<Spool> spool = Spool::Open(folder_.path());
  ASSERT_THAT(spool, IsOk());
  TakeSyncedFiles();
  ASSERT_THAT(spool->Write("a", DrawnRequest(1, 3, 100), DrawnPlan(1, 3), MakeMesh({.dp = 1})), IsOk());
  EXPECT_THAT(TakeSyncedFiles(), ElementsAre(StartsWith(".a."), "spool"));
}

TEST_F(SyncTest, ASpooledRequestThatIsNotDurableIsNotLeft) {
  const absl::StatusOr<Spool> spool = Spool::Open(folder_.path());
  ASSERT_THAT(spool, IsOk());
  FailSyncsOf("/spool", EIO);
  EXPECT_FALSE(spool->Write("a", DrawnRequest(1, 3, 100), DrawnPlan(1, 3), MakeMesh({.dp = 1})).ok());
  EXPECT_TRUE(FilesOf(folder_ / "spool").empty());
}

TEST_F(SyncTest, AWrittenFileThatIsNotDurableIsNotLeft) {
  for (const int error : {EIO, 0}) {
    absl::StatusOr<FileWriter> writer = FileWriter::Create(folder_ / "a");
    ASSERT_THAT(writer, IsOk());
    ASSERT_THAT(writer->Write("x", 1), IsOk());
    FailSyncsOf("/a", error);
    EXPECT_EQ(writer->Close().ok(), error == 0);
    EXPECT_EQ(FilesOf(folder_.path()).size(), error == 0 ? 1u : 0u) << "before the writer's end";
  }
}

// As an export: whoever was told of its name finds it after a power failure.
TEST_F(SyncTest, AFolderIsSyncedBeforeItHasItsNameAndItsParentAfterwards) {
  absl::StatusOr<TemporaryFolder> made = TemporaryFolder::Create(folder_ / "exports/w");
  ASSERT_THAT(made, IsOk());
  const std::string temporary = std::filesystem::path(made->path()).filename().string();
  TakeSyncedFiles();
  ASSERT_THAT(made->Commit(), IsOk());
  EXPECT_THAT(TakeSyncedFiles(), ElementsAre(temporary, "exports"));

  absl::StatusOr<TemporaryFolder> failing = TemporaryFolder::Create(folder_ / "exports/x");
  FailSyncsOf("exports", EIO);
  EXPECT_FALSE(failing->Commit().ok());
  EXPECT_FALSE(std::filesystem::exists(folder_ / "exports/x")) << "nobody is told of it";
}

}  // namespace
}  // namespace stemma::server
