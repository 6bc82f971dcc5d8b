// The server's data directory: journal, spool, checkpoints, exports, incidents and calibration. One server at a time.
//
// The lock is the kernel's, on the file `.lock` in it: it ends with the process, however that ends. The file says who
// holds it, for the error of the next one who asks.
#pragma once

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/unique_fd.h"

namespace stemma::server {

class DataDirectory {
 public:
  // Creates it if need be, locks it, and writes who holds it. Errors, all the configuration's: no path, one too
  // long for the journal's database, not a directory, it cannot be written, another server holds it (its pid and
  // address).
  static absl::StatusOr<DataDirectory> Open(const std::string& path);

  const std::string& path() const { return path_; }  // absolute
  // Notes in the lock file where its holder serves.
  absl::Status SetAddress(const std::string& address);

 private:
  DataDirectory(std::string path, UniqueFd fd) : path_(std::move(path)), fd_(std::move(fd)) {}

  std::string path_;
  UniqueFd fd_;  // holds the lock
};

}  // namespace stemma::server
