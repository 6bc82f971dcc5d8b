#include "server/store/journal_rows.h"

#include "absl/strings/str_cat.h"
#include "common/base/digest.h"
#include "common/base/error.h"
#include "common/base/status_macros.h"

namespace stemma::server {
namespace {

constexpr int64_t kApplicationId = 0x53544d4a;  // "STMJ"
constexpr int64_t kVersion = 1;                 // of the table and of the hash

absl::Status BadRow(const std::string& path, uint64_t n, std::string_view what) {
  return MakeError(Reason::kCorruptJournal, absl::StrCat(path, ": row ", n, " ", std::string(what), "; ", kWhatToDo));
}

// Adds the row that the statement stands at. Columns: n, snapshot, body, previous, hash.
absl::Status AddRow(const Statement& row, const std::string& path, JournalRows& rows) {
  const JournalMark last = rows.last();
  const uint64_t expected = last.n + 1;
  if (!row.IsInteger(0) || !row.IsInteger(1) || !row.IsBlob(2) || !row.IsBlob(3) || !row.IsBlob(4)) {
    return BadRow(path, expected, "has a field of another type");
  }
  if (row.Integer(0) < 1) return BadRow(path, expected, absl::StrCat("has the number ", row.Integer(0)));
  const uint64_t n = static_cast<uint64_t>(row.Integer(0));
  const bool snapshot = row.Integer(1) == 1;
  const std::string_view body = row.Blob(2), previous = row.Blob(3), hash = row.Blob(4);
  JournalMark before = last;
  if (rows.entries.empty()) {
    // A journal begins with row 1, or with the snapshot that replaced all rows before it.
    if (n != 1 && !snapshot) return BadRow(path, n, "is the first one, and no snapshot: rows before it are missing");
    before = {n - 1, std::string(previous)};
    if (n == 1 && before.hash != last.hash) return BadRow(path, n, "names a row before it");
  } else {
    if (n != expected) return BadRow(path, expected, absl::StrCat("is missing: ", n, " follows ", last.n));
    if (snapshot) return BadRow(path, n, "is a snapshot, and stands behind other rows");
    if (previous != last.hash) return BadRow(path, n, "does not name the row before it");
  }
  if (hash != HashOfRow(before, snapshot, body)) return BadRow(path, n, "has contents that its hash is not of");
  if (rows.entries.empty()) rows.before = before;
  rows.entries.push_back({n, std::string(body)});
  rows.hashes.emplace_back(hash);
  return absl::OkStatus();
}

}  // namespace

std::string HashOfRow(const JournalMark& previous, bool snapshot, std::string_view body) {
  Sha256 sha;
  sha.Update(previous.hash);
  sha.UpdateInteger(previous.n + 1);
  sha.Update(snapshot ? std::string_view("\1", 1) : std::string_view("\0", 1));
  sha.Update(body);
  const auto digest = sha.Finish();
  return {digest.begin(), digest.end()};
}

absl::Status CreateRows(Database& database, const std::string& path) {
  ASSIGN_OR_RETURN(const std::string mode, database.Text("PRAGMA journal_mode=WAL"));
  if (mode != "wal") {
    return absl::FailedPreconditionError(
        absl::StrCat(path, ": its file system takes no write-ahead log; name a data directory on a local disk"));
  }
  RETURN_IF_ERROR(database.Execute("BEGIN IMMEDIATE"));
  RETURN_IF_ERROR(
      database.Execute("CREATE TABLE rows(n INTEGER PRIMARY KEY, snapshot INTEGER NOT NULL, body BLOB NOT NULL, "
                       "previous BLOB NOT NULL, hash BLOB NOT NULL)"));
  RETURN_IF_ERROR(database.Execute(absl::StrCat("PRAGMA application_id=", kApplicationId)));
  RETURN_IF_ERROR(database.Execute(absl::StrCat("PRAGMA user_version=", kVersion)));
  return database.Execute("COMMIT");
}

absl::StatusOr<bool> IsEmptyDatabase(Database& database, const std::string& path) {
  ASSIGN_OR_RETURN(const int64_t tables, database.Integer("SELECT count(*) FROM sqlite_schema"));
  ASSIGN_OR_RETURN(const int64_t application, database.Integer("PRAGMA application_id"));
  ASSIGN_OR_RETURN(const int64_t version, database.Integer("PRAGMA user_version"));
  if (tables == 0 && application == 0 && version == 0) return true;
  if (application != kApplicationId) {
    return absl::FailedPreconditionError(absl::StrCat(path, ": is not a journal of Stemma (application id ",
                                                      application, "); name another data directory"));
  }
  if (version != kVersion) {
    return absl::FailedPreconditionError(absl::StrCat(path, ": has version ", version, ", this program reads version ",
                                                      kVersion, "; start the one that wrote it"));
  }
  return false;
}

absl::StatusOr<JournalRows> ReadRows(Database& database, const std::string& path) {
  ASSIGN_OR_RETURN(const std::string mode, database.Text("PRAGMA journal_mode"));
  ASSIGN_OR_RETURN(const std::string structure, database.Text("PRAGMA quick_check(1)"));
  if (mode != "wal" || structure != "ok") {
    const std::string what = mode != "wal" ? absl::StrCat("its journal mode is ", mode) : structure;
    return MakeError(Reason::kCorruptJournal, absl::StrCat(path, ": ", what, "; ", kWhatToDo));
  }
  ASSIGN_OR_RETURN(Statement row, database.Prepare("SELECT n, snapshot, body, previous, hash FROM rows ORDER BY n"));
  JournalRows rows;
  while (true) {
    ASSIGN_OR_RETURN(const bool there, row.Step());
    if (!there) return rows;
    RETURN_IF_ERROR(AddRow(row, path, rows));
  }
}

absl::Status CheckWitness(const JournalRows& rows, const JournalMark& witness, const std::string& path) {
  const uint64_t last_n = rows.last().n;
  if (witness.n > last_n) {
    return MakeError(Reason::kJournalBehind, absl::StrCat(path, ": ends with row ", last_n, ", but row ", witness.n,
                                                          " was written: rows are lost; ", kWhatToDo));
  }
  // One that is further behind was not written since a snapshot, and there is nothing to compare it with.
  if (witness.n < rows.before.n) return absl::OkStatus();
  const std::string& hash =
      witness.n == rows.before.n ? rows.before.hash : rows.hashes.at(witness.n - rows.before.n - 1);
  if (hash == witness.hash) return absl::OkStatus();
  return MakeError(Reason::kJournalBehind,
                   absl::StrCat(path, ": row ", witness.n, " is not the one that was written; ", kWhatToDo));
}

absl::StatusOr<RowInserter> RowInserter::Make(Database& database) {
  ASSIGN_OR_RETURN(Statement insert, database.Prepare("INSERT INTO rows(n, snapshot, body, previous, hash) "
                                                      "VALUES(?1, ?2, ?3, ?4, ?5)"));
  return RowInserter(std::move(insert));
}

absl::StatusOr<JournalMark> RowInserter::Insert(const JournalMark& previous, bool snapshot, std::string_view body) {
  if (body.size() > kBlobBytesMax) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a row of the journal has ", body.size(), " bytes, the limit is ", kBlobBytesMax));
  }
  JournalMark mark{previous.n + 1, HashOfRow(previous, snapshot, body)};
  insert_.BindInteger(1, static_cast<int64_t>(mark.n));
  insert_.BindInteger(2, snapshot ? 1 : 0);
  insert_.BindBlob(3, body);
  insert_.BindBlob(4, previous.hash);
  insert_.BindBlob(5, mark.hash);
  RETURN_IF_ERROR(insert_.Run());
  return mark;
}

}  // namespace stemma::server
