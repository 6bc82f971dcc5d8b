#include "server/store/journal.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/base/status_macros.h"
#include "common/base/unique_fd.h"
#include "glog/logging.h"
#include "server/store/folder.h"

namespace stemma::server {
namespace {

constexpr char kDatabaseFile[] = "journal.db", kWitnessFile[] = "last";

std::string FolderIn(const std::string& directory) { return absl::StrCat(directory, "/journal"); }

// A caller that never settles must not fill the disk with the log.
constexpr uint64_t kUnsettledBytesMax = 16 << 20;
constexpr uint64_t kPagesBytesOfRow = 2 * 4096;  // that a small row writes to the log, about

// Creates an empty file for the database, so that it and its log are this user's alone. One that is there is not
// opened: closing it would give up the lock that another Journal of this process has on it.
absl::Status MakeFile(const std::string& path) {
  const UniqueFd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  return fd.valid() || errno == EEXIST ? absl::OkStatus() : ErrnoStatus("create", path, errno);
}

absl::StatusOr<JournalRows> Verified(Database& database, const std::string& path, const std::string& witness_path) {
  ASSIGN_OR_RETURN(const bool empty, IsEmptyDatabase(database, path));
  ASSIGN_OR_RETURN(const std::optional<JournalMark> witness, JournalWitness::Read(witness_path));
  JournalRows rows;
  if (!empty) {
    ASSIGN_OR_RETURN(rows, ReadRows(database, path));
  }
  if (witness.has_value()) RETURN_IF_ERROR(CheckWitness(rows, *witness, path));
  if (!witness.has_value() && !rows.entries.empty()) {
    LOG(WARNING) << path << ": nothing says that row " << rows.last().n
                 << " is the last one that was written: " << witness_path
                 << " is missing or damaged, and is written anew";
  }
  if (empty) RETURN_IF_ERROR(CreateRows(database, path));
  return rows;
}

}  // namespace

bool Journal::IsIn(const std::string& directory) {
  const auto is_there = [&](const char* file) {
    struct stat info;
    return lstat(absl::StrCat(directory, "/journal/", file).c_str(), &info) == 0 || errno != ENOENT;
  };
  return is_there(kDatabaseFile) || is_there(kWitnessFile);
}

absl::StatusOr<Database> Journal::Lock(const std::string& directory) {
  ASSIGN_OR_RETURN(const std::string root, ResolvePath(directory));
  const std::string folder = FolderIn(root), path = absl::StrCat(folder, "/", kDatabaseFile);
  RETURN_IF_ERROR(MakePrivateFolder(folder));
  RETURN_IF_ERROR(MakeFile(path));
  return Database::Open(path);
}

absl::StatusOr<Journal> Journal::Open(const std::string& directory) {
  ASSIGN_OR_RETURN(Database database, Lock(directory));
  return Open(directory, std::move(database));
}

absl::StatusOr<Journal> Journal::Open(const std::string& directory, Database database) {
  ASSIGN_OR_RETURN(const std::string root, ResolvePath(directory));
  const std::string folder = FolderIn(root);
  const std::string path = absl::StrCat(folder, "/", kDatabaseFile);
  const std::string witness_path = absl::StrCat(folder, "/", kWitnessFile);
  ASSIGN_OR_RETURN(JournalRows rows, Verified(database, path, witness_path));
  ASSIGN_OR_RETURN(RowInserter inserter, RowInserter::Make(database));
  // A server that was killed may have left a row that was never forced: now it is, before the witness names it.
  RETURN_IF_ERROR(database.Settle());
  ASSIGN_OR_RETURN(JournalWitness witness, JournalWitness::Open(witness_path));
  Journal journal(std::move(database), std::move(inserter), std::move(witness), std::move(rows));
  RETURN_IF_ERROR(journal.witness_.Write(journal.last_));
  RETURN_IF_ERROR(journal.witness_.Sync());
  RETURN_IF_ERROR(SyncFolder(folder));
  return journal;
}

Journal::Journal(Database database, RowInserter inserter, JournalWitness witness, JournalRows rows)
    : database_(std::move(database)),
      inserter_(std::move(inserter)),
      witness_(std::move(witness)),
      last_(rows.last()),
      rows_(std::move(rows.entries)) {}

std::vector<JournalEntry> Journal::TakeRows() { return std::exchange(rows_, {}); }

absl::Status Journal::Append(uint64_t n, std::string_view body, bool settles) {
  CHECK_EQ(n, last_.n + 1);
  if (failed_.ok()) failed_ = AppendDurably(body, settles);
  return failed_;
}

absl::Status Journal::Compact(uint64_t n, std::string_view snapshot) {
  CHECK_EQ(n, last_.n + 1);
  if (failed_.ok()) failed_ = Replace(snapshot);
  return failed_;
}

absl::Status Journal::AppendDurably(std::string_view body, bool settles) {
  ASSIGN_OR_RETURN(const JournalMark mark, inserter_.Insert(last_, /*snapshot=*/false, body));
  last_ = mark;
  RETURN_IF_ERROR(witness_.Write(mark));
  unsettled_bytes_ += body.size() + kPagesBytesOfRow;
  return settles || unsettled_bytes_ > kUnsettledBytesMax ? Settle() : absl::OkStatus();
}

absl::Status Journal::Replace(std::string_view snapshot) {
  // The witness on the disk must not fall behind the row that the snapshot names: no other row is there to hold it to.
  RETURN_IF_ERROR(witness_.Sync());
  RETURN_IF_ERROR(database_.Execute("BEGIN IMMEDIATE"));
  RETURN_IF_ERROR(database_.Execute("DELETE FROM rows"));
  ASSIGN_OR_RETURN(const JournalMark mark, inserter_.Insert(last_, /*snapshot=*/true, snapshot));
  RETURN_IF_ERROR(database_.Execute("COMMIT"));
  last_ = mark;
  RETURN_IF_ERROR(witness_.Write(mark));
  return Settle();
}

absl::Status Journal::Settle() {
  RETURN_IF_ERROR(database_.Settle());
  unsettled_bytes_ = 0;
  return witness_.Sync();
}

}  // namespace stemma::server
