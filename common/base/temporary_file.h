// A file that appears whole or not at all: written under a name of its own beside its place, then renamed to it.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/unique_fd.h"

namespace stemma {

class TemporaryFile {
 public:
  // Creates `.NAME.RANDOM` (TargetOfTemporary) in the folder of `target`: two writers of one target never share a file.
  // `mode`: of the file, whatever the umask is.
  static absl::StatusOr<TemporaryFile> Create(const std::string& target, mode_t mode = 0644);
  TemporaryFile(TemporaryFile&& other) noexcept;
  TemporaryFile& operator=(TemporaryFile&&) = delete;
  ~TemporaryFile();  // removes it unless it was committed

  int fd() const { return fd_.get(); }
  absl::Status Write(std::string_view content);
  // fsyncs and renames to the target, which is replaced.
  absl::Status Commit();
  // Gives the open file away.
  UniqueFd TakeFd() { return std::move(fd_); }

 private:
  TemporaryFile(std::string target, std::string path, UniqueFd fd);

  std::string target_, path_;  // path_ empty: committed
  UniqueFd fd_;
};

// Returns the NAME of a file `.NAME.RANDOM`, which may be what a process that was killed left; empty: it is no such
// file.
std::string_view TargetOfTemporary(std::string_view file_name);

// The file at `path` is replaced whole; after an error it is what it was, and nothing else is left.
absl::Status ReplaceFile(const std::string& path, std::string_view content);

}  // namespace stemma
