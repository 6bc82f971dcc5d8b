// The file that tells others where a server serves: its addresses, a line each, there only while it serves.
//
// A first line HOST:PORT, then lines of a word and HOST:PORT. The writer holds a lock on it as long as it lives, so
// that a file of a server that runs is told from one that a killed server left. Nothing else is ever replaced or
// removed.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/unique_fd.h"

namespace stemma {

class ReadyFile {
 public:
  // Checks the path before anything is started. Errors: InvalidArgument - something lies there that is not the ready
  // file of a server that has ended: a folder, a link, a user's file, a running server's; or its folder is not there or
  // cannot be written.
  static absl::Status Check(const std::string& path);

  // Checks the path, and removes the file of a server that has ended: who waits for it waits for the new one. Errors:
  // as Check's.
  static absl::Status Clear(const std::string& path);

  // Checks again and writes it whole.
  static absl::StatusOr<ReadyFile> Write(const std::string& path, std::string_view content);
  ReadyFile(ReadyFile&&) = default;
  ReadyFile& operator=(ReadyFile&&) = delete;
  ~ReadyFile() { Remove(); }

  // If it is still the one that was written. Idempotent.
  void Remove();

 private:
  ReadyFile(std::string path, UniqueFd fd) : path_(std::move(path)), fd_(std::move(fd)) {}

  std::string path_;
  UniqueFd fd_;  // holds the lock; none: removed
};

}  // namespace stemma
