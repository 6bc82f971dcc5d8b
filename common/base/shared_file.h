// A file of which several processes write the bytes at the same time, each its own. Checkpoints and exports use it.
// Thread safety: none; one thread at a time.
// Always holds: no write takes the last kLeftForJournalBytes of the disk (common/base/free_bytes.h).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/byte_runs.h"
#include "common/base/unique_fd.h"

namespace stemma {

class SharedFile {
 public:
  // Opens a file, or makes it; never cuts it, and never follows a link at the path's last part. Errors: the file
  // system's, DISK_FULL and the like among them; InvalidArgument - it is a link, or no regular file.
  static absl::StatusOr<SharedFile> Open(const std::string& path);

  const std::string& path() const { return path_; }
  // Writes bytes of the runs, from the one that is number `first` of all of them on. Errors: the file system's;
  // DISK_FULL - the rest of the disk is kept for the journal.
  absl::Status Write(const ByteRuns& runs, uint64_t first, std::string_view bytes);
  // Closes it once what it wrote is on the disk. Errors: the file system's.
  absl::Status Close();  // no call after it

 private:
  SharedFile(std::string path, UniqueFd fd) : path_(std::move(path)), fd_(std::move(fd)) {}

  std::string path_;
  UniqueFd fd_;
};

}  // namespace stemma
