// The journal: numbered rows, each of which a restart must not forget. What a row says is its caller's; here it is
// bytes.
//
// <directory>/journal/journal.db is an SQLite database that one process at a time has open, and journal/last its
// witness (journal_witness.h). Thread safety: none.
//
// Invariants, all of them checked by Open:
//  (1) rows count up from 1 without a gap; Compact puts a snapshot in the place of all rows before it.
//  (2) hash = SHA-256(previous hash | n as 8 bytes, little-endian | one byte, 1 for a snapshot, else 0 | body);
//      a row names the hash of the row before it, and row 1 names 32 zero bytes.
//  (3) a row whose Append returned OK is on the disk, and the witness never names a row that is not.
//
// After an error of Append or Compact it is unknown whether the row is on the disk. The journal answers every later
// call with the same error: the process must end, and Open of the next one finds out.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/store/database.h"
#include "server/store/journal_rows.h"
#include "server/store/journal_witness.h"

namespace stemma::server {

class Journal {
 public:
  // Tells whether the directory has a journal: a database, or a witness that says that there was one.
  static bool IsIn(const std::string& directory);
  // Creates the journal if need be and locks it; nothing of it is changed. Errors: as Open's.
  static absl::StatusOr<Database> Lock(const std::string& directory);
  // Reads and verifies all of a journal that Lock locked. One that is refused is not changed. Errors:
  // FailedPrecondition - another process has it open, or another program or version wrote it; CORRUPT_JOURNAL - names
  // the file, the row and what to do; JOURNAL_BEHIND - rows that were durable are missing; those of the disk
  // (database.h).
  static absl::StatusOr<Journal> Open(const std::string& directory, Database database);
  // Locks it first.
  static absl::StatusOr<Journal> Open(const std::string& directory);

  // The rows that Open read, in their order; a second call answers none.
  std::vector<JournalEntry> TakeRows();
  // The number of the last row; 0: there is none.
  uint64_t last_n() const { return last_.n; }

  // Returns OK when the row is durable. `settles` also empties the write-ahead log, so that damage of it can reach only
  // the rows since then. REQUIRES: n == last_n() + 1.
  absl::Status Append(uint64_t n, std::string_view body, bool settles);
  // Replaces all rows by one, durably: after a crash there are the rows before or the snapshot. REQUIRES: as Append.
  absl::Status Compact(uint64_t n, std::string_view snapshot);

 private:
  Journal(Database database, RowInserter inserter, JournalWitness witness, JournalRows rows);

  absl::Status AppendDurably(std::string_view body, bool settles);
  absl::Status Replace(std::string_view snapshot);
  absl::Status Settle();

  Database database_;
  RowInserter inserter_;
  JournalWitness witness_;
  JournalMark last_;
  std::vector<JournalEntry> rows_;  // that Open read
  uint64_t unsettled_bytes_ = 0;    // about those in the log
  absl::Status failed_;
};

}  // namespace stemma::server
