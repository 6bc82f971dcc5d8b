#include "common/base/file_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "common/base/file.h"
#include "common/base/status_macros.h"

namespace stemma {

absl::StatusOr<FileWriter> FileWriter::Create(const std::string& path, mode_t mode) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
  if (fd < 0) return ErrnoStatus("create", path, errno);
  return FileWriter(path, fd);
}

FileWriter::FileWriter(FileWriter&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)) {}

FileWriter::~FileWriter() {
  if (fd_ < 0) return;
  close(fd_);
  unlink(path_.c_str());
}

absl::Status FileWriter::Write(const void* data, size_t bytes) {
  return WriteAll(fd_, {static_cast<const char*>(data), bytes}, path_);
}

absl::Status FileWriter::Close() {
  if (fsync(fd_) != 0) return ErrnoStatus("fsync", path_, errno);
  if (close(std::exchange(fd_, -1)) == 0) return absl::OkStatus();
  const int error = errno;
  unlink(path_.c_str());
  return ErrnoStatus("close", path_, error);
}

}  // namespace stemma
