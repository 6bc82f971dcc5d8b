// The rows of the journal as they lie in its table, and what must hold of them (journal.h).
//
// Errors: CORRUPT_JOURNAL, JOURNAL_BEHIND, which name the file and the row; those of the database.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/store/database.h"
#include "server/store/journal_witness.h"

namespace stemma::server {

struct JournalEntry {
  uint64_t n = 0;
  std::string body;
};

// Rows whose chain is whole.
struct JournalRows {
  std::vector<JournalEntry> entries;
  std::vector<std::string> hashes;  // one per entry
  JournalMark before;               // the row before the first, as the first names it

  JournalMark last() const { return entries.empty() ? before : JournalMark{entries.back().n, hashes.back()}; }
};

// Returns the hash of a row, of which `previous` is the row before.
std::string HashOfRow(const JournalMark& previous, bool snapshot, std::string_view body);

// Creates the table in an empty database, in one transaction. Errors: FailedPrecondition - its file system is of no
// use.
absl::Status CreateRows(Database& database, const std::string& path);
// Tells whether the database is empty. Errors: FailedPrecondition - another program, or another version, wrote it.
absl::StatusOr<bool> IsEmptyDatabase(Database& database, const std::string& path);
absl::StatusOr<JournalRows> ReadRows(Database& database, const std::string& path);

// Errors: the witness is ahead of the rows, or names another row than that of its number.
absl::Status CheckWitness(const JournalRows& rows, const JournalMark& witness, const std::string& path);

// Adds rows, one at a time.
class RowInserter {
 public:
  static absl::StatusOr<RowInserter> Make(Database& database);
  // Returns the new row's mark. Errors: ResourceExhausted - the body is larger than kBlobBytesMax.
  absl::StatusOr<JournalMark> Insert(const JournalMark& previous, bool snapshot, std::string_view body);

 private:
  explicit RowInserter(Statement insert) : insert_(std::move(insert)) {}

  Statement insert_;
};

}  // namespace stemma::server
