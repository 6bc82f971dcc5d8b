#include "server/store/database.h"

#include <sqlite3.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "common/base/file.h"
#include "common/base/status_macros.h"
#include "glog/logging.h"

namespace stemma::server {
namespace {

absl::Status DiskError(const std::string& path, int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
    case EROFS:
    case EACCES:
    case EPERM:
    case ENOENT:
    case ELOOP:
      return ErrnoStatus("use", path, error);
    default:
      return absl::UnavailableError(absl::StrCat("use ", path, ": ", std::strerror(error == 0 ? EIO : error)));
  }
}

absl::Status MayNotBeWritten(const std::string& path) {
  return absl::PermissionDeniedError(
      absl::StrCat(path, ": may not be written; give the server's user leave to, and mount its disk to be written"));
}

// Returns what the system said last to SQLite about the file; 0 when it said nothing.
int LastErrno(sqlite3_file* file) {
  int error = 0;
  if (file == nullptr || file->pMethods == nullptr) return 0;
  return file->pMethods->xFileControl(file, SQLITE_FCNTL_LAST_ERRNO, &error) == SQLITE_OK ? error : 0;
}

// SQLite keeps the system's error with the connection, but for a failed commit only with the file: of the log or the
// database.
int SystemErrno(sqlite3* connection) {
  if (const int error = sqlite3_system_errno(connection); error != 0) return error;
  for (const int which : {SQLITE_FCNTL_JOURNAL_POINTER, SQLITE_FCNTL_FILE_POINTER}) {
    sqlite3_file* file = nullptr;
    if (sqlite3_file_control(connection, "main", which, static_cast<void*>(&file)) != SQLITE_OK) continue;
    if (const int error = LastErrno(file); error != 0) return error;
  }
  return 0;
}

// Makes a status of the connection's last error.
absl::Status ErrorOf(sqlite3* connection, const std::string& path) {
  const int code = sqlite3_extended_errcode(connection);
  const int error = SystemErrno(connection);
  switch (code & 0xff) {
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return absl::FailedPreconditionError(
          absl::StrCat(path, ": another process uses it; end that server, or name another data directory"));
    case SQLITE_FULL:
      return DiskError(path, ENOSPC);
    case SQLITE_IOERR:
      return DiskError(path, error);
    case SQLITE_CANTOPEN:
      return DiskError(path, code == SQLITE_CANTOPEN_SYMLINK ? ELOOP : error);
    case SQLITE_READONLY:
    case SQLITE_PERM:
      return MayNotBeWritten(path);
    case SQLITE_NOMEM:
    case SQLITE_TOOBIG:
      return absl::ResourceExhaustedError(absl::StrCat(path, ": ", sqlite3_errmsg(connection)));
    default:
      return MakeError(Reason::kCorruptJournal, absl::StrCat(path, ": ", sqlite3_errmsg(connection), "; ", kWhatToDo));
  }
}

absl::Status ErrorOf(sqlite3_stmt* statement) {
  sqlite3* connection = sqlite3_db_handle(statement);
  return ErrorOf(connection, sqlite3_db_filename(connection, "main"));
}

}  // namespace

void Statement::Finalize::operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }

void Statement::BindInteger(int parameter, int64_t value) {
  CHECK_EQ(sqlite3_bind_int64(statement_.get(), parameter, value), SQLITE_OK);
}

void Statement::BindBlob(int parameter, std::string_view bytes) {
  const char* data = bytes.data() == nullptr ? "" : bytes.data();  // a null pointer would bind NULL
  CHECK_EQ(sqlite3_bind_blob64(statement_.get(), parameter, data, bytes.size(), SQLITE_STATIC), SQLITE_OK);
}

absl::StatusOr<bool> Statement::Step() {
  const int code = sqlite3_step(statement_.get());
  if (code == SQLITE_ROW) return true;
  if (code == SQLITE_DONE) return false;
  return ErrorOf(statement_.get());
}

absl::Status Statement::Run() {
  const absl::StatusOr<bool> row = Step();
  Reset();
  return row.status();
}

void Statement::Reset() {
  sqlite3_reset(statement_.get());
  sqlite3_clear_bindings(statement_.get());
}

bool Statement::IsInteger(int column) const { return sqlite3_column_type(statement_.get(), column) == SQLITE_INTEGER; }

bool Statement::IsBlob(int column) const { return sqlite3_column_type(statement_.get(), column) == SQLITE_BLOB; }

int64_t Statement::Integer(int column) const { return sqlite3_column_int64(statement_.get(), column); }

std::string_view Statement::Blob(int column) const {
  const void* data = sqlite3_column_blob(statement_.get(), column);
  return {static_cast<const char*>(data), static_cast<size_t>(sqlite3_column_bytes(statement_.get(), column))};
}

std::string Statement::Text(int column) const {
  const unsigned char* text = sqlite3_column_text(statement_.get(), column);
  return text == nullptr ? "" : reinterpret_cast<const char*>(text);
}

void Database::Close::operator()(sqlite3* connection) const { sqlite3_close_v2(connection); }

absl::StatusOr<Database> Database::Open(const std::string& path) {
  sqlite3* connection = nullptr;
  const int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_NOFOLLOW | SQLITE_OPEN_EXRESCODE;
  const int code = sqlite3_open_v2(path.c_str(), &connection, flags, nullptr);
  CHECK(connection != nullptr) << "no memory for a connection";
  Database database;
  database.connection_.reset(connection);
  if (code != SQLITE_OK) return ErrorOf(connection, path);
  // SQLite opens it to be read where it may not be written, and then cannot lock it, for no reason that helps anybody.
  if (sqlite3_db_readonly(connection, "main") == 1) return MayNotBeWritten(path);
  // Closing would otherwise move what is left of a damaged log into the file and remove it: the evidence.
  CHECK_EQ(sqlite3_db_config(connection, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, nullptr), SQLITE_OK);
  CHECK_EQ(sqlite3_db_config(connection, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, nullptr), SQLITE_OK);
  // The lock comes first: with it the log's index lies in our memory, not in a file that others could map.
  for (const char* pragma : {"PRAGMA locking_mode=EXCLUSIVE", "PRAGMA synchronous=FULL", "PRAGMA wal_autocheckpoint=0",
                             "PRAGMA secure_delete=OFF", "PRAGMA cell_size_check=ON"}) {
    RETURN_IF_ERROR(database.Execute(pragma));
  }
  RETURN_IF_ERROR(database.Integer("SELECT count(*) FROM sqlite_schema").status());
  return database;
}

absl::StatusOr<Statement> Database::Prepare(std::string_view sql) {
  sqlite3_stmt* prepared = nullptr;
  const int code =
      sqlite3_prepare_v2(connection_.get(), sql.data(), static_cast<int>(sql.size()), &prepared, /*pzTail=*/nullptr);
  if (code != SQLITE_OK) return ErrorOf(connection_.get(), sqlite3_db_filename(connection_.get(), "main"));
  Statement statement;
  statement.statement_.reset(prepared);
  return statement;
}

absl::Status Database::Execute(std::string_view sql) {
  ASSIGN_OR_RETURN(Statement statement, Prepare(sql));
  return statement.Run();
}

absl::StatusOr<int64_t> Database::Integer(std::string_view sql) {
  ASSIGN_OR_RETURN(Statement statement, Prepare(sql));
  ASSIGN_OR_RETURN(const bool row, statement.Step());
  CHECK(row) << sql;
  return statement.Integer(0);
}

absl::StatusOr<std::string> Database::Text(std::string_view sql) {
  ASSIGN_OR_RETURN(Statement statement, Prepare(sql));
  ASSIGN_OR_RETURN(const bool row, statement.Step());
  CHECK(row) << sql;
  return statement.Text(0);
}

absl::Status Database::Settle() {
  // Its first column says whether another connection was in the way; there is none.
  ASSIGN_OR_RETURN(const int64_t busy, Integer("PRAGMA wal_checkpoint(TRUNCATE)"));
  CHECK_EQ(busy, 0);
  return absl::OkStatus();
}

}  // namespace stemma::server
