// Damage of any of the journal's files is refused by name, or harms no row that was said to be durable. The controls
// show what SQLite alone says of the same damage.
#include <sqlite3.h>

#include <set>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "tests/server/store/store_files.h"
#include "tests/testing/status_matchers.h"

namespace stemma::server {
namespace {

using testing::IsOk;
using testing::TempFolder;

constexpr uint64_t kSeed = 7;
constexpr uint64_t kRows = 40;

// Runs SQL past the journal's own code, and returns the first column of the last row.
std::string RunSql(const std::string& path, const std::string& sql) {
  sqlite3* connection = nullptr;
  EXPECT_EQ(sqlite3_open(path.c_str(), &connection), SQLITE_OK);
  std::string answer;
  const auto keep = [](void* to, int, char** columns, char**) {
    *static_cast<std::string*>(to) = columns[0] == nullptr ? "" : columns[0];
    return 0;
  };
  char* error = nullptr;
  EXPECT_EQ(sqlite3_exec(connection, sql.c_str(), keep, &answer, &error), SQLITE_OK) << (error == nullptr ? "" : error);
  sqlite3_close(connection);
  return answer;
}

class JournalDamageTest : public ::testing::Test {
 protected:
  JournalDamageTest() : files_folder_(folder_ / "journal"), path_(folder_ / "journal/journal.db") {}

  // Appends rows; those after `settled` stay in the log.
  void Fill(uint64_t settled, uint64_t count = kRows) const {
    absl::StatusOr<Journal> journal = Journal::Open(folder_.path());
    ASSERT_THAT(journal, IsOk());
    for (uint64_t n = journal->last_n() + 1; n <= count; ++n) {
      ASSERT_THAT(journal->Append(n, DrawnBody(kSeed, n), n <= settled), IsOk());
    }
  }

  absl::StatusOr<Journal> Open() const { return Journal::Open(folder_.path()); }

  // Expects a refusal that names the database, and no change of any file.
  void ExpectRefused(std::set<std::string> reasons, const std::string& what) const {
    const Files before = Evidence();
    const absl::Status status = Open().status();
    EXPECT_TRUE(reasons.contains(ErrorReason(status))) << what << ": " << status;
    EXPECT_NE(status.message().find("journal.db"), std::string::npos) << what << ": " << status;
    EXPECT_NE(status.message().find("backup"), std::string::npos) << what << ": " << status;
    EXPECT_TRUE(Evidence() == before) << what << ": evidence was changed";
  }

  // All files with something in them: SQLite may create an empty log.
  Files Evidence() const {
    Files files = FilesOf(files_folder_);
    std::erase_if(files, [](const auto& file) { return file.second.empty(); });
    return files;
  }

  const TempFolder folder_;
  const std::string files_folder_, path_;
};

const std::set<std::string> kBehind = {"JOURNAL_BEHIND"};
const std::set<std::string> kCorrupt = {"CORRUPT_JOURNAL"};
const std::set<std::string> kEither = {"JOURNAL_BEHIND", "CORRUPT_JOURNAL"};

// Every byte of every header, and drawn ones elsewhere. Half of the rows lie in the log.
TEST_F(JournalDamageTest, AFlippedByteIsRefusedOrHarmsNoRow) {
  Fill(kRows / 2);
  const Files whole = FilesOf(files_folder_);
  ASSERT_EQ(whole.size(), 3u) << "database, log, witness";
  int refused = 0, harmless = 0;
  for (const auto& [name, bytes] : whole) {
    SplitMix64 random(kSeed + bytes.size());
    ASSERT_GT(bytes.size(), 60u) << name;
    for (uint64_t i = 0; i < 250; ++i) {
      const uint64_t at = i < 120 && i < bytes.size() ? i : random.Next() % bytes.size();
      Files damaged = whole;
      damaged[name][at] = static_cast<char>(damaged[name][at] ^ (1 << random.Next() % 8));
      SetFiles(files_folder_, damaged);
      absl::StatusOr<Journal> journal = Open();
      const std::string what = absl::StrCat("seed ", kSeed, ", byte ", at, " of ", name);
      if (journal.ok()) {
        ++harmless;
        ExpectDrawnRows(journal->TakeRows(), kSeed, kRows);
        ASSERT_THAT(journal->Append(kRows + 1, "next", /*settles=*/true), IsOk()) << what;
      } else {
        ++refused;
        EXPECT_NE(journal.status().message().find("journal.db"), std::string::npos) << what << journal.status();
        EXPECT_TRUE(kEither.contains(ErrorReason(journal.status())) ||
                    journal.status().code() == absl::StatusCode::kFailedPrecondition)
            << what << ": " << journal.status();
        EXPECT_TRUE(FilesOf(files_folder_) == damaged) << what << ": evidence was changed";
      }
      ASSERT_FALSE(HasFailure()) << what;
    }
  }
  EXPECT_GT(refused, 200);
  EXPECT_GT(harmless, 80) << "at least the witness's own bytes";
}

// The log's rows are the last ones. Without the witness SQLite ends before the damage and says that all is well.
TEST_F(JournalDamageTest, AFlippedByteInTheLogHidesRowsFromSqliteAndIsSeenByTheWitness) {
  Fill(kRows / 2);
  Files files = FilesOf(files_folder_);
  std::string& log = files["journal.db-wal"];
  log[log.size() / 2] ^= 1;
  SetFiles(files_folder_, files);
  ExpectRefused(kBehind, "the middle of the log");

  std::filesystem::remove(folder_ / "journal/last");
  absl::StatusOr<Journal> journal = Open();
  ASSERT_THAT(journal, IsOk()) << "control: nothing else sees it";
  EXPECT_GE(journal->last_n(), kRows / 2);
  EXPECT_LT(journal->last_n(), kRows) << "control: rows are gone";
  journal = absl::CancelledError();
  EXPECT_EQ(RunSql(path_, "PRAGMA integrity_check"), "ok") << "control";
}

TEST_F(JournalDamageTest, ACutOrMissingLogIsSeen) {
  Fill(kRows / 2);
  const Files whole = FilesOf(files_folder_);
  const uint64_t bytes = whole.at("journal.db-wal").size();
  for (const uint64_t left : {uint64_t{0}, uint64_t{31}, uint64_t{32}, uint64_t{4000}, bytes / 2, bytes - 1}) {
    Files files = whole;
    files["journal.db-wal"].resize(left);
    SetFiles(files_folder_, files);
    ExpectRefused(kBehind, absl::StrCat(left, " bytes of the log"));
  }
  Files files = whole;
  files.erase("journal.db-wal");
  SetFiles(files_folder_, files);
  ExpectRefused(kBehind, "no log");
}

// A log that was cut may have old frames behind its new ones: they are of another salt and belong to nothing.
TEST_F(JournalDamageTest, OldFramesBehindTheLogHideNoRow) {
  Fill(/*settled=*/0, kRows / 2);
  const std::string old_log = BytesOf(folder_ / "journal/journal.db-wal");
  Fill(/*settled=*/0, kRows / 2 + 2);
  Files files = FilesOf(files_folder_);
  std::string& log = files["journal.db-wal"];
  ASSERT_LT(log.size(), old_log.size());
  for (const uint64_t garbage : {uint64_t{0}, uint64_t{100}, uint64_t{4120}}) {
    Files with_old = files;
    std::string& grown = with_old["journal.db-wal"];
    grown += std::string(garbage, '\x55') + old_log.substr(std::min<uint64_t>(grown.size(), old_log.size()));
    SetFiles(files_folder_, with_old);
    absl::StatusOr<Journal> journal = Open();
    ASSERT_THAT(journal, IsOk()) << garbage;
    ExpectDrawnRows(journal->TakeRows(), kSeed, kRows / 2 + 2);
  }
}

// An old log whose frames are whole: SQLite plays them into the newer database.
TEST_F(JournalDamageTest, AnOldLogBesideANewerDatabaseIsSeen) {
  Fill(/*settled=*/0, kRows / 4);
  const std::string old_log = BytesOf(folder_ / "journal/journal.db-wal");
  Fill(kRows);
  SetBytes(folder_ / "journal/journal.db-wal", old_log);
  ExpectRefused(kEither, "an old log");
}

TEST_F(JournalDamageTest, AnOldCopyOfTheDatabaseIsSeen) {
  Fill(kRows / 2, kRows / 2);
  const Files old = FilesOf(files_folder_);
  Fill(kRows);
  Files files = FilesOf(files_folder_);
  files["journal.db"] = old.at("journal.db");
  SetFiles(files_folder_, files);
  ExpectRefused(kBehind, "an old database");
  files["journal.db"] = "";
  SetFiles(files_folder_, files);
  ExpectRefused(kBehind, "an empty database");
  SetFiles(files_folder_, old);
  EXPECT_THAT(Open(), IsOk()) << "control: an old copy of all files cannot be told from a journal that ends there";
}

// Each is a database without fault for SQLite.
TEST_F(JournalDamageTest, ARowThatIsChangedMovedOrMissingIsSeen) {
  Fill(kRows);
  const Files whole = FilesOf(files_folder_);
  const std::pair<const char*, std::set<std::string>> cases[] = {
      {"UPDATE rows SET body=x'00' WHERE n=7", kCorrupt},
      {"UPDATE rows SET body=CAST('a' AS TEXT) WHERE n=7", kCorrupt},
      {"UPDATE rows SET previous=zeroblob(32) WHERE n=7", kCorrupt},
      {"UPDATE rows SET previous=x'' WHERE n=1", kCorrupt},
      {"UPDATE rows SET hash=zeroblob(32) WHERE n=40", kCorrupt},
      {"UPDATE rows SET snapshot=1 WHERE n=7", kCorrupt},
      {"UPDATE rows SET snapshot=1 WHERE n=1", kCorrupt},
      {"DELETE FROM rows WHERE n=7", kCorrupt},
      {"DELETE FROM rows WHERE n<7", kCorrupt},
      {"DELETE FROM rows WHERE n=1", kCorrupt},
      {"DELETE FROM rows WHERE n=40", kBehind},
      {"DELETE FROM rows WHERE n>1", kBehind},
      {"DELETE FROM rows", kBehind},
      {"UPDATE rows SET n=41 WHERE n=40", kCorrupt},
      {"UPDATE rows SET n=0 WHERE n=1", kCorrupt},
      {"UPDATE rows SET n=-1 WHERE n=1", kCorrupt},
      {"UPDATE rows SET n=99 WHERE n=7; UPDATE rows SET n=7 WHERE n=8; UPDATE rows SET n=8 WHERE n=99", kCorrupt},
      {"UPDATE rows SET body=(SELECT body FROM rows WHERE n=3), hash=(SELECT hash FROM rows WHERE n=3) WHERE n=7",
       kCorrupt},
      {"DROP TABLE rows", kCorrupt},
      {"ALTER TABLE rows RENAME TO others", kCorrupt},
      {"PRAGMA locking_mode=EXCLUSIVE; PRAGMA journal_mode=DELETE", kCorrupt},
  };
  for (const auto& [sql, reasons] : cases) {
    SetFiles(files_folder_, whole);
    RunSql(path_, sql);
    EXPECT_EQ(RunSql(path_, "PRAGMA integrity_check"), "ok") << sql;
    ExpectRefused(reasons, sql);
  }
  SetFiles(files_folder_, whole);
  RunSql(path_, "UPDATE rows SET n=n");
  EXPECT_THAT(Open(), IsOk()) << "control";
}

// Every row reads well; the next one would be written into a page of another.
TEST_F(JournalDamageTest, ADamagedListOfFreePagesIsSeen) {
  {
    absl::StatusOr<Journal> journal = Open();
    ASSERT_THAT(journal->Append(1, std::string(50000, 'a'), /*settles=*/true), IsOk());
    ASSERT_THAT(journal->Compact(2, std::string(20000, 'b')), IsOk());
  }
  Files files = FilesOf(files_folder_);
  std::string& database = files["journal.db"];
  constexpr size_t kFirstFreePage = 32;  // in the header, 4 bytes, big-endian
  ASSERT_NE(database.substr(kFirstFreePage, 4), std::string(4, '\0')) << "there are free pages";
  database.replace(kFirstFreePage, 4, std::string("\0\0\0\2", 4));  // the table's root
  SetFiles(files_folder_, files);
  ExpectRefused(kCorrupt, "the list of free pages");
}

// A chain that is whole, from a snapshot whose number comes before every row's.
TEST_F(JournalDamageTest, ASnapshotThatIsNoRowIsSeen) {
  for (const int64_t n : {0, -1, -40, 1}) {
    std::filesystem::remove_all(files_folder_);
    { ASSERT_THAT(Open(), IsOk()); }
    JournalMark before;
    before.n = static_cast<uint64_t>(n) - 1;
    const std::string hash = absl::BytesToHexString(HashOfRow(before, /*snapshot=*/true, "other"));
    RunSql(path_, absl::StrCat("INSERT INTO rows VALUES(", n, ", 1, x'6f74686572', zeroblob(32), x'", hash, "')"));
    if (n < 1) {
      ExpectRefused(kCorrupt, absl::StrCat("row ", n));
    } else {
      EXPECT_THAT(Open(), IsOk()) << "control: the hash fits";
    }
  }
}

// Row 7 with a hash of its new contents: the chain from there on is another's.
TEST_F(JournalDamageTest, AChangedRowWithAFittingHashIsSeenByTheNextRow) {
  Fill(kRows);
  JournalMark before;
  for (uint64_t n = 1; n < 7; ++n) before = {n, HashOfRow(before, /*snapshot=*/false, DrawnBody(kSeed, n))};
  const std::string hash = absl::BytesToHexString(HashOfRow(before, /*snapshot=*/false, "other"));
  const std::string change = absl::StrCat("UPDATE rows SET body=x'6f74686572', hash=x'", hash, "' WHERE n=7");
  RunSql(path_, change);
  ExpectRefused(kCorrupt, "row 7");
  // As the last row it has no next one; the witness knows it.
  RunSql(path_, "DELETE FROM rows WHERE n>7");
  SetBytes(folder_ / "journal/last", "");
  EXPECT_THAT(Open(), IsOk()) << "control: the hash fits";
}

TEST_F(JournalDamageTest, ALastRowThatIsAnotherOneIsSeenByTheWitness) {
  Fill(kRows);
  const std::string witness = BytesOf(folder_ / "journal/last");
  std::filesystem::remove_all(files_folder_);
  {
    absl::StatusOr<Journal> journal = Open();
    ASSERT_THAT(journal, IsOk());
    for (uint64_t n = 1; n <= kRows; ++n) ASSERT_THAT(journal->Append(n, "other", /*settles=*/true), IsOk());
  }
  SetBytes(folder_ / "journal/last", witness);
  ExpectRefused(kBehind, "another journal");
}

TEST_F(JournalDamageTest, ADamagedOrMissingWitnessIsWrittenAnew) {
  for (const std::string& bytes : {std::string(), std::string(80, '\0'), std::string(500, 'x')}) {
    Fill(kRows);
    const std::string whole = BytesOf(folder_ / "journal/last");
    ASSERT_EQ(whole.size(), 80u);
    SetBytes(folder_ / "journal/last", bytes);
    {
      absl::StatusOr<Journal> journal = Open();
      ASSERT_THAT(journal, IsOk());
      ExpectDrawnRows(journal->TakeRows(), kSeed, kRows);
    }
    EXPECT_EQ(BytesOf(folder_ / "journal/last"), whole);
    std::filesystem::remove(folder_ / "journal/last");
    EXPECT_THAT(Open(), IsOk());
    EXPECT_EQ(BytesOf(folder_ / "journal/last"), whole);
  }
}

// What a power cut leaves: the rows are durable, the witness is of an earlier row.
TEST_F(JournalDamageTest, AWitnessBehindTheRowsIsBroughtUpToDate) {
  for (const bool compacts : {false, true}) {
    Fill(kRows / 2, kRows / 2);
    const std::string behind = BytesOf(folder_ / "journal/last");
    uint64_t last = kRows;
    if (compacts) {
      last = kRows / 2 + 1;
      absl::StatusOr<Journal> journal = Open();
      ASSERT_THAT(journal->Compact(last, "all"), IsOk());
    } else {
      Fill(kRows);
    }
    const std::string current = BytesOf(folder_ / "journal/last");
    ASSERT_NE(current, behind);
    SetBytes(folder_ / "journal/last", behind);
    {
      absl::StatusOr<Journal> journal = Open();
      ASSERT_THAT(journal, IsOk()) << (compacts ? "a snapshot" : "rows");
      EXPECT_EQ(journal->last_n(), last);
    }
    EXPECT_EQ(BytesOf(folder_ / "journal/last"), current);
    std::filesystem::remove_all(files_folder_);
  }
}

TEST_F(JournalDamageTest, ASnapshotOfAnotherJournalIsSeenByTheWitnessBeforeIt) {
  Fill(kRows / 2, kRows / 2);
  const std::string witness = BytesOf(folder_ / "journal/last");
  std::filesystem::remove_all(files_folder_);
  {
    absl::StatusOr<Journal> journal = Open();
    for (uint64_t n = 1; n <= kRows / 2; ++n) ASSERT_THAT(journal->Append(n, "other", /*settles=*/true), IsOk());
    ASSERT_THAT(journal->Compact(kRows / 2 + 1, "all"), IsOk());
  }
  SetBytes(folder_ / "journal/last", witness);
  ExpectRefused(kBehind, "the snapshot names another row before it");
}

}  // namespace
}  // namespace stemma::server
