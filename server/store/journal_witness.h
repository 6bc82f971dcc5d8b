// The witness of the journal: a small file beside it that says which row was the last one to become durable.
//
// SQLite takes a damaged frame of its write-ahead log for the log's end, and later rows, which were committed, are gone
// without a word. The witness is written after a row is durable, so it may be behind the rows and is never ahead of
// them: where it is, rows are missing. It lies in the page cache until Sync, which an end of the process alone does not
// harm.
//
// The file: 8 bytes of magic, n (8 bytes, little-endian), the row's hash (32 bytes), SHA-256 of the 48 bytes before.
// Thread safety: none.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/unique_fd.h"

namespace stemma::server {

// A row and its hash; n = 0: no row yet.
struct JournalMark {
  uint64_t n = 0;
  std::string hash = std::string(32, '\0');
};

class JournalWitness {
 public:
  // Returns what the file says; nullopt when it is missing, or damaged, which is logged.
  static absl::StatusOr<std::optional<JournalMark>> Read(const std::string& path);

  // Opens it for writing, creates it if need be. Links are not followed.
  static absl::StatusOr<JournalWitness> Open(const std::string& path);

  absl::Status Write(const JournalMark& mark);
  absl::Status Sync();

 private:
  JournalWitness(std::string path, UniqueFd fd) : path_(std::move(path)), fd_(std::move(fd)) {}

  std::string path_;
  UniqueFd fd_;
};

}  // namespace stemma::server
