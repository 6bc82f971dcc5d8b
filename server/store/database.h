// One SQLite database that one process has to itself: the only place that knows SQLite.
//
// Thread safety: none; one connection, used by one thread.
// Always holds: the file is locked for this connection alone from the first read to the end, its write-ahead log is
// never checkpointed or removed but by Settle, not even when the connection closes.
//
// Errors, each with the path: FailedPrecondition - another process has it; PermissionDenied - it may not be written;
// DISK_FULL, FILE_TOO_LARGE, READ_ONLY; Unavailable - the disk failed; CORRUPT_JOURNAL - SQLite finds the file damaged,
// or no database.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

struct sqlite3;
struct sqlite3_stmt;

namespace stemma::server {

inline constexpr uint64_t kBlobBytesMax = 512 << 20;  // below SQLite's own limit, 10^9 bytes a row

// Ends every error about damage.
inline constexpr char kWhatToDo[] = "restore the folder from a backup, or start with a new data directory";

// A prepared statement; it must end before its database. Parameters count from 1, columns from 0.
class Statement {
 public:
  void BindInteger(int parameter, int64_t value);
  // The bytes are read by Step and must live until Reset; at most kBlobBytesMax.
  void BindBlob(int parameter, std::string_view bytes);
  // True: there is a row. False: the statement is done.
  absl::StatusOr<bool> Step();
  // Runs a statement that answers no row, and resets it.
  absl::Status Run();
  void Reset();

  // Only after Step answered true; a blob lives until the next Step.
  bool IsInteger(int column) const;
  bool IsBlob(int column) const;
  int64_t Integer(int column) const;
  std::string_view Blob(int column) const;
  std::string Text(int column) const;

 private:
  friend class Database;
  struct Finalize {
    void operator()(sqlite3_stmt* statement) const;
  };
  std::unique_ptr<sqlite3_stmt, Finalize> statement_;
};

class Database {
 public:
  // Opens the file, which must be there (it may be empty), and locks it. Links are not followed.
  static absl::StatusOr<Database> Open(const std::string& path);

  absl::StatusOr<Statement> Prepare(std::string_view sql);
  absl::Status Execute(std::string_view sql);
  // The first column of the first row.
  absl::StatusOr<int64_t> Integer(std::string_view sql);
  absl::StatusOr<std::string> Text(std::string_view sql);
  // Moves the write-ahead log into the file and cuts it to nothing, durably.
  absl::Status Settle();

 private:
  struct Close {
    void operator()(sqlite3* connection) const;
  };
  std::unique_ptr<sqlite3, Close> connection_;
};

}  // namespace stemma::server
