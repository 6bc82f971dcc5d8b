#include "common/base/file_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "common/base/file.h"

namespace stemma {

absl::StatusOr<FileWriter> FileWriter::Create(const std::string& path, mode_t mode) {
  UniqueFd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode));
  if (!fd.valid()) return ErrnoStatus("create", path, errno);
  return FileWriter(path, std::move(fd));
}

FileWriter::~FileWriter() {
  if (fd_.valid()) unlink(path_.c_str());
}

absl::Status FileWriter::Write(const void* data, size_t bytes) {
  return WriteAll(fd_.get(), {static_cast<const char*>(data), bytes}, path_);
}

absl::Status FileWriter::Close() {
  const absl::Status closed = SyncAndClose(std::move(fd_), path_);
  if (!closed.ok()) unlink(path_.c_str());
  return closed;
}

}  // namespace stemma
