// The journal keeps what it was given, in order, for one process at a time, in a file that does not grow without bound.
#include "server/store/journal.h"

#include <sqlite3.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tests/server/store/store_files.h"
#include "tests/testing/status_matchers.h"

namespace stemma::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::IsOk;
using testing::StatusIs;
using testing::TempFolder;

Journal Opened(const std::string& directory) {
  absl::StatusOr<Journal> journal = Journal::Open(directory);
  EXPECT_THAT(journal, IsOk());
  return *std::move(journal);
}

mode_t ModeOf(const std::string& path) {
  struct stat info;
  EXPECT_EQ(stat(path.c_str(), &info), 0) << path;
  return info.st_mode & 0777;
}

TEST(JournalTest, ANewJournalIsEmptyAndItsFilesAreTheUsersAlone) {
  const TempFolder folder;
  Journal journal = Opened(folder.path());
  EXPECT_EQ(journal.last_n(), 0u);
  EXPECT_TRUE(journal.TakeRows().empty());
  EXPECT_THAT(journal.Append(1, "a", /*settles=*/false), IsOk());
  EXPECT_EQ(ModeOf(folder / "journal"), 0700u);
  for (const char* name : {"journal.db", "journal.db-wal", "last"}) {
    EXPECT_EQ(ModeOf(folder / "journal/" + name), 0600u) << name;
  }
  EXPECT_FALSE(std::filesystem::exists(folder / "journal/journal.db-shm"));
}

TEST(JournalTest, OneOfItsFilesAloneSaysThatThereIsAJournal) {
  for (const char* left : {"journal.db", "last"}) {
    const TempFolder folder;
    EXPECT_FALSE(Journal::IsIn(folder.path()));
    std::filesystem::create_directory(folder / "journal");
    EXPECT_FALSE(Journal::IsIn(folder.path()));
    std::ofstream(folder / "journal/" + left) << "x";
    EXPECT_TRUE(Journal::IsIn(folder.path())) << left;
  }
}

TEST(JournalTest, RowsComeBackInOrderOverRestarts) {
  for (const uint64_t seed : {1u, 2u, 3u}) {
    const TempFolder folder;
    SplitMix64 random(seed);
    uint64_t count = 0;
    for (int restart = 0; restart < 8; ++restart) {
      Journal journal = Opened(folder.path());
      EXPECT_EQ(journal.last_n(), count);
      ExpectDrawnRows(journal.TakeRows(), seed, count);
      EXPECT_TRUE(journal.TakeRows().empty()) << "given away once";
      for (uint64_t i = random.Next() % 20; i > 0; --i) {
        ++count;
        ASSERT_THAT(journal.Append(count, DrawnBody(seed, count), random.Next() % 4 == 0), IsOk());
      }
    }
  }
}

TEST(JournalTest, AnEmptyBodyIsARow) {
  const TempFolder folder;
  EXPECT_THAT(Opened(folder.path()).Append(1, std::string_view(), /*settles=*/true), IsOk());
  const std::vector<JournalEntry> rows = Opened(folder.path()).TakeRows();
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].body, "");
}

TEST(JournalTest, SettlingEmptiesTheLogAndOtherRowsStayInIt) {
  const TempFolder folder;
  Journal journal = Opened(folder.path());
  const auto log_bytes = [&] { return std::filesystem::file_size(folder / "journal/journal.db-wal"); };
  EXPECT_EQ(log_bytes(), 0u);
  EXPECT_THAT(journal.Append(1, "a", /*settles=*/false), IsOk());
  EXPECT_GT(log_bytes(), 0u);
  EXPECT_THAT(journal.Append(2, "b", /*settles=*/true), IsOk());
  EXPECT_EQ(log_bytes(), 0u);
  EXPECT_THAT(journal.Append(3, "c", /*settles=*/false), IsOk());
  EXPECT_THAT(journal.Compact(4, "d"), IsOk());
  EXPECT_EQ(log_bytes(), 0u);
}

TEST(JournalTest, ALogThatNothingSettlesIsBounded) {
  const TempFolder folder;
  Journal journal = Opened(folder.path());
  const std::string body(1 << 20, 'x');
  uint64_t largest = 0;
  for (uint64_t n = 1; n <= 64; ++n) {
    ASSERT_THAT(journal.Append(n, body, /*settles=*/false), IsOk());
    largest = std::max<uint64_t>(largest, std::filesystem::file_size(folder / "journal/journal.db-wal"));
  }
  EXPECT_GT(largest, 8u << 20);
  EXPECT_LT(largest, 20u << 20);
}

TEST(JournalTest, ASnapshotStandsForAllRowsBeforeIt) {
  const TempFolder folder;
  {
    Journal journal = Opened(folder.path());
    for (uint64_t n = 1; n <= 5; ++n) ASSERT_THAT(journal.Append(n, DrawnBody(1, n), /*settles=*/true), IsOk());
    ASSERT_THAT(journal.Compact(6, "all"), IsOk());
    EXPECT_EQ(journal.last_n(), 6u);
    ASSERT_THAT(journal.Append(7, "next", /*settles=*/false), IsOk());
  }
  for (const uint64_t last : {7u, 8u}) {
    Journal journal = Opened(folder.path());
    const std::vector<JournalEntry> rows = journal.TakeRows();
    ASSERT_EQ(rows.size(), last - 5);
    EXPECT_EQ(rows[0].n, 6u);
    EXPECT_EQ(rows[0].body, "all");
    EXPECT_EQ(rows[1].n, 7u);
    EXPECT_EQ(rows[1].body, "next");
    if (last == 7) {
      ASSERT_THAT(journal.Append(8, "after", /*settles=*/false), IsOk());
    }
  }
}

TEST(JournalTest, AnEmptyJournalCanBeReplacedByASnapshot) {
  const TempFolder folder;
  EXPECT_THAT(Opened(folder.path()).Compact(1, "all"), IsOk());
  EXPECT_EQ(Opened(folder.path()).TakeRows().at(0).body, "all");
}

TEST(JournalDeathTest, ARowOfAnotherNumberIsOurBug) {
  const TempFolder folder;
  Journal journal = Opened(folder.path());
  EXPECT_DEATH(journal.Append(2, "a", /*settles=*/false).IgnoreError(), "last_.n");
  EXPECT_DEATH(journal.Compact(0, "a").IgnoreError(), "last_.n");
}

// Starts a process that opens the journal when a byte comes, and ends with 0 if that is refused. It is started before
// the journal is opened here: it must not inherit what SQLite knows of this process's locks.
pid_t StartOpener(const std::string& directory, int& start) {
  int pipe_fds[2];
  EXPECT_EQ(pipe(pipe_fds), 0);
  const pid_t child = fork();
  if (child == 0) {
    char byte;
    if (read(pipe_fds[0], &byte, 1) != 1) _exit(2);
    _exit(Journal::Open(directory).status().code() == absl::StatusCode::kFailedPrecondition ? 0 : 1);
  }
  close(pipe_fds[0]);
  start = pipe_fds[1];
  return child;
}

TEST(JournalTest, ASecondOpenerIsToldAndHarmsNothing) {
  const TempFolder folder;
  int start = -1;
  const pid_t child = StartOpener(folder.path(), start);
  Journal journal = Opened(folder.path());
  ASSERT_THAT(journal.Append(1, "a", /*settles=*/false), IsOk());
  EXPECT_THAT(Journal::Open(folder.path()), StatusIs(absl::StatusCode::kFailedPrecondition,
                                                     AllOf(HasSubstr("journal.db"), HasSubstr("another process"),
                                                           HasSubstr("name another data directory"))))
      << "the same process; it must not give up the lock";
  ASSERT_EQ(write(start, "", 1), 1);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  close(start);
  EXPECT_EQ(status, 0) << "another process";
  ASSERT_THAT(journal.Append(2, "b", /*settles=*/true), IsOk());
}

TEST(JournalTest, AnotherProgramsDatabaseAndAnotherVersionAreRefused) {
  for (const char* sql : {"PRAGMA application_id=7", "PRAGMA user_version=2"}) {
    const TempFolder folder;
    ASSERT_THAT(Opened(folder.path()).Append(1, "a", /*settles=*/true), IsOk());
    sqlite3* connection = nullptr;
    ASSERT_EQ(sqlite3_open((folder / "journal/journal.db").c_str(), &connection), SQLITE_OK);
    EXPECT_EQ(sqlite3_exec(connection, sql, nullptr, nullptr, nullptr), SQLITE_OK);
    sqlite3_close(connection);
    EXPECT_THAT(Journal::Open(folder.path()), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("journal.db")))
        << sql;
  }
}

TEST(JournalTest, LinksAreNotFollowed) {
  const TempFolder folder, elsewhere;
  { Opened(elsewhere.path()); }
  std::filesystem::create_directory_symlink(elsewhere / "journal", folder / "journal");
  EXPECT_THAT(Journal::Open(folder.path()), testing::Invalid("is a link"));
  for (const char* name : {"journal.db", "last"}) {
    const TempFolder other;
    { Opened(other.path()); }
    std::filesystem::remove(other / "journal/" + name);
    std::filesystem::create_symlink(elsewhere / "journal/" + name, other / "journal/" + name);
    EXPECT_THAT(Journal::Open(other.path()), testing::Invalid(name));
  }
  // The data directory itself may be named by a link.
  std::filesystem::create_directory_symlink(elsewhere.path(), folder / "data");
  EXPECT_THAT(Journal::Open(folder / "data"), IsOk());
}

TEST(JournalTest, AFolderThatIsNotThereIsAnError) {
  const TempFolder folder;
  EXPECT_THAT(Journal::Open(folder / "gone"), StatusIs(absl::StatusCode::kNotFound, HasSubstr("gone")));
}

// In memory where the system has a folder there: the count of rows is the subject, not the disk.
TEST(JournalTest, AHundredThousandRowsWithSnapshotsStayBounded) {
  const bool in_memory = access("/dev/shm", W_OK) == 0;
  std::string folder = (in_memory ? "/dev/shm/" : ::testing::TempDir()) + std::string("stemma-XXXXXX");
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  uint64_t largest = 0;
  {
    Journal journal = Opened(folder);
    const std::string row(300, 'r'), snapshot(100000, 's');
    for (uint64_t n = 1; n <= 100000; ++n) {
      const bool compacts = n % 1000 == 0;
      ASSERT_THAT(compacts ? journal.Compact(n, snapshot) : journal.Append(n, row, n % 3 == 0), IsOk());
      if (compacts) largest = std::max<uint64_t>(largest, std::filesystem::file_size(folder + "/journal/journal.db"));
    }
    ASSERT_THAT(journal.Append(100001, row, /*settles=*/true), IsOk());
  }
  EXPECT_LT(largest, 2u << 20) << "1000 rows of 300 bytes and their chain, and two snapshots";
  Journal journal = Opened(folder);
  EXPECT_EQ(journal.TakeRows().size(), 2u);
  EXPECT_EQ(journal.last_n(), 100001u);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace stemma::server
