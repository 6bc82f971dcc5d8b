// A journal whose process is killed, or whose disk is full, keeps every row that it said was durable.
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

#include "common/base/clock.h"
#include "common/base/error.h"
#include "tests/server/store/store_files.h"
#include "tests/testing/file_size_limit.h"
#include "tests/testing/status_matchers.h"

namespace stemma::server {
namespace {

using testing::FileSizeLimit;
using testing::IsOk;
using testing::TempFolder;

// Adds row `n` to a journal.
using AddRow = std::function<absl::Status(Journal&, uint64_t n)>;

// Adds rows until it is killed, and writes one byte to the pipe after each row that is durable.
[[noreturn]] void AddForever(const std::string& directory, const AddRow& add, int pipe) {
  absl::StatusOr<Journal> journal = Journal::Open(directory);
  if (!journal.ok()) _exit(1);
  while (true) {
    if (!add(*journal, journal->last_n() + 1).ok()) _exit(2);
    if (write(pipe, "", 1) != 1) _exit(3);
  }
}

// Returns how many rows were acknowledged by a child that was killed after `acknowledged` of them, a little later. It
// counts rows and not seconds, so that a slow disk has as many.
uint64_t KillWhileAdding(const std::string& directory, const AddRow& add, uint64_t acknowledged,
                         uint64_t microseconds) {
  int pipe_fds[2];
  EXPECT_EQ(pipe(pipe_fds), 0);
  const pid_t child = fork();
  if (child == 0) {
    close(pipe_fds[0]);
    AddForever(directory, add, pipe_fds[1]);
  }
  close(pipe_fds[1]);
  char byte;
  uint64_t count = 0;
  while (count < acknowledged && read(pipe_fds[0], &byte, 1) == 1) ++count;
  RealClock().Sleep(absl::Microseconds(microseconds));
  kill(child, SIGKILL);
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status)) << "the child ended by itself: " << status;
  while (read(pipe_fds[0], &byte, 1) == 1) ++count;
  close(pipe_fds[0]);
  return count;
}

TEST(JournalCrashTest, AKilledProcessLosesNoRowThatItWasToldOf) {
  constexpr uint64_t kSeed = 12;
  const TempFolder folder;
  const AddRow append = [](Journal& journal, uint64_t n) { return journal.Append(n, DrawnBody(kSeed, n), n % 3 == 0); };
  SplitMix64 random(kSeed);
  uint64_t before = 0, unacknowledged = 0;
  for (int kill = 0; kill < 50; ++kill) {
    const uint64_t count = KillWhileAdding(folder.path(), append, random.Next() % 8, random.Next() % 2000);
    absl::StatusOr<Journal> journal = Journal::Open(folder.path());
    ASSERT_THAT(journal, IsOk()) << "seed " << kSeed << ", kill " << kill;
    EXPECT_GE(journal->last_n(), before + count) << "kill " << kill;
    EXPECT_LE(journal->last_n(), before + count + 1) << "kill " << kill;
    unacknowledged += journal->last_n() - before - count;
    before = journal->last_n();
    ExpectDrawnRows(journal->TakeRows(), kSeed, before);
  }
  EXPECT_GT(before, 50u);
  RecordProperty("unacknowledged", static_cast<int>(unacknowledged));
}

std::string SnapshotOrRow(uint64_t n) { return std::string(n % 4 == 0 ? 60000 : 100, static_cast<char>('a' + n % 26)); }

// Compacts every fourth time: what is left is the last snapshot and the rows since.
TEST(JournalCrashTest, AKillDuringASnapshotLeavesTheRowsOrTheSnapshot) {
  const TempFolder folder;
  const AddRow add = [](Journal& journal, uint64_t n) {
    return n % 4 == 0 ? journal.Compact(n, SnapshotOrRow(n)) : journal.Append(n, SnapshotOrRow(n), n % 2 == 0);
  };
  SplitMix64 random(5);
  uint64_t last = 0;
  for (int round = 0; round < 25; ++round) {
    // Every second kill comes right after the row before a snapshot, so that many fall within one.
    const uint64_t rows_first = round % 2 == 0 ? 3 - last % 4 : random.Next() % 8;
    const uint64_t count = KillWhileAdding(folder.path(), add, rows_first, random.Next() % 3000);
    absl::StatusOr<Journal> journal = Journal::Open(folder.path());
    ASSERT_THAT(journal, IsOk()) << "round " << round;
    EXPECT_GE(journal->last_n(), last + count) << "round " << round;
    EXPECT_LE(journal->last_n(), last + count + 1) << "round " << round;
    last = journal->last_n();
    const std::vector<JournalEntry> rows = journal->TakeRows();
    EXPECT_EQ(rows.size(), last < 4 ? last : last % 4 + 1) << "the last snapshot and the rows since";
    for (const JournalEntry& row : rows) EXPECT_EQ(row.body, SnapshotOrRow(row.n));
  }
  EXPECT_GT(last, 25u);
}

TEST(JournalCrashTest, AFullDiskEndsTheJournalAndLosesNothing) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const TempFolder folder;
    SplitMix64 random(seed);
    uint64_t acknowledged = 0;
    {
      absl::StatusOr<Journal> journal = Journal::Open(folder.path());
      ASSERT_THAT(journal, IsOk());
      const FileSizeLimit limit(20000 + random.Next() % 100000);
      absl::Status status;
      while (true) {
        status = journal->Append(acknowledged + 1, DrawnBody(seed, acknowledged + 1), random.Next() % 3 == 0);
        if (!status.ok()) break;
        ASSERT_LT(++acknowledged, 10000u);
      }
      EXPECT_EQ(ErrorReason(status), "FILE_TOO_LARGE") << status << ", seed " << seed;
      EXPECT_NE(status.message().find("journal.db"), std::string::npos) << status;
      EXPECT_NE(status.message().find("File too large"), std::string::npos) << status;
      const uint64_t next = journal->last_n() + 1;
      EXPECT_EQ(journal->Append(next, "", /*settles=*/true), status) << "it takes nothing more";
      EXPECT_EQ(journal->Compact(next, ""), status);
    }
    absl::StatusOr<Journal> journal = Journal::Open(folder.path());
    ASSERT_THAT(journal, IsOk()) << "seed " << seed;
    EXPECT_LE(journal->last_n(), acknowledged + 1) << "seed " << seed;
    ExpectDrawnRows(journal->TakeRows(), seed, std::max(acknowledged, journal->last_n()));
    EXPECT_THAT(journal->Append(journal->last_n() + 1, "there is room again", /*settles=*/true), IsOk());
  }
}

// The error comes once; what was refused after it must not be on the disk.
TEST(JournalCrashTest, AfterAnErrorNothingIsWrittenEvenWhenThereIsRoomAgain) {
  const TempFolder folder;
  uint64_t last = 0;
  {
    absl::StatusOr<Journal> journal = Journal::Open(folder.path());
    ASSERT_THAT(journal, IsOk());
    {
      const FileSizeLimit limit(30000);
      EXPECT_FALSE(journal->Append(1, std::string(50000, 'x'), /*settles=*/false).ok());
    }
    last = journal->last_n();
    EXPECT_FALSE(journal->Append(last + 1, "later", /*settles=*/true).ok());
    EXPECT_FALSE(journal->Compact(last + 1, "later").ok());
  }
  absl::StatusOr<Journal> journal = Journal::Open(folder.path());
  ASSERT_THAT(journal, IsOk());
  EXPECT_EQ(journal->last_n(), 0u);
}

TEST(JournalCrashTest, ARowThatIsTooLargeIsAnError) {
  const TempFolder folder;
  absl::StatusOr<Journal> journal = Journal::Open(folder.path());
  ASSERT_THAT(journal, IsOk());
  // The size alone is looked at: these pages may not be read.
  constexpr size_t kBytes = (512 << 20) + 1;
  void* pages = mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(pages, MAP_FAILED);
  EXPECT_EQ(journal->Append(1, {static_cast<const char*>(pages), kBytes}, /*settles=*/true).code(),
            absl::StatusCode::kResourceExhausted);
  munmap(pages, kBytes);
}

}  // namespace
}  // namespace stemma::server
