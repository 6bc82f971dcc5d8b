// Regular files, read and written whole or in part. Links are not followed at the last part of a path: callers resolve
// what an operator may name by a link first (ResolvePath).
//
// Errors name the path: NotFound, PermissionDenied, InvalidArgument, Internal; DISK_FULL and the like (docs/errors.md).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/unique_fd.h"

namespace stemma {

// Names the system call that failed: "open /a/b: No such file or directory".
absl::Status ErrnoStatus(std::string_view what, const std::string& path, int error);

class RegularFile {
 public:
  static absl::StatusOr<RegularFile> Open(const std::string& path);
  // Opens `name` in a folder that the caller holds open; `path` is for the errors.
  static absl::StatusOr<RegularFile> OpenAt(int folder_fd, const std::string& name, const std::string& path);

  int fd() const { return fd_.get(); }
  uint64_t bytes() const { return bytes_; }  // when it was opened
  // All `size` bytes or an error.
  absl::Status ReadAt(uint64_t offset, void* data, uint64_t size) const;

 private:
  RegularFile(std::string path, UniqueFd fd, uint64_t bytes)
      : path_(std::move(path)), fd_(std::move(fd)), bytes_(bytes) {}

  std::string path_;
  UniqueFd fd_;
  uint64_t bytes_ = 0;
};

// The whole file, refused when larger than `max_bytes`.
absl::StatusOr<std::string> ReadFile(const std::string& path, uint64_t max_bytes);

// Writes all of it, however the kernel cuts it; `path` is for the error.
absl::Status WriteAll(int fd, std::string_view content, const std::string& path);

// Closes it once what it wrote is on the disk; after an error it is closed too.
absl::Status SyncAndClose(UniqueFd fd, const std::string& path);

// Makes the creation, renaming and removal of the folder's files durable.
absl::Status SyncFolder(const std::string& path);

// Writes, fsyncs and closes; an existing file is overwritten in place (ReplaceFile in temporary_file.h: whole or not).
absl::Status WriteFile(const std::string& path, std::string_view content);

// The absolute path without links. Errors: NotFound, a dangling link included.
absl::StatusOr<std::string> ResolvePath(const std::string& path);

}  // namespace stemma
