#include "common/base/shared_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/file.h"

namespace stemma {
namespace {

absl::Status WriteAt(int fd, uint64_t offset, std::string_view bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t count = pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return ErrnoStatus("write", path, errno);
    bytes.remove_prefix(static_cast<size_t>(count));
    offset += static_cast<uint64_t>(count);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<SharedFile> SharedFile::Open(const std::string& path) {
  // O_NONBLOCK: a fifo must not hold us.
  const int fd = open(path.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0644);
  if (fd < 0) return ErrnoStatus("create", path, errno);
  SharedFile file(path, fd);
  struct stat info;
  if (fstat(fd, &info) != 0) return ErrnoStatus("stat", path, errno);
  if (!S_ISREG(info.st_mode)) return absl::InvalidArgumentError(absl::StrCat(path, ": not a regular file"));
  return file;
}

SharedFile::SharedFile(SharedFile&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)) {}

SharedFile::~SharedFile() {
  if (fd_ >= 0) close(fd_);
}

absl::Status SharedFile::Write(const ByteRuns& runs, uint64_t first, std::string_view bytes) {
  return ForEachRun(runs, first, bytes.size(), [&](uint64_t place, uint64_t done, uint64_t count) {
    return WriteAt(fd_, place, bytes.substr(done, count), path_);
  });
}

absl::Status SharedFile::Close() {
  if (fsync(fd_) != 0) return ErrnoStatus("fsync", path_, errno);
  const int fd = std::exchange(fd_, -1);
  if (close(fd) != 0) return ErrnoStatus("close", path_, errno);
  return absl::OkStatus();
}

}  // namespace stemma
