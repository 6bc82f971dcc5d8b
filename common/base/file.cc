#include "common/base/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "common/base/status_macros.h"

namespace stemma {

absl::Status ErrnoStatus(std::string_view what, const std::string& path, int error) {
  const std::string message = absl::StrCat(std::string(what), " ", path, ": ", std::strerror(error));
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return absl::NotFoundError(message);
    case EACCES:
    case EPERM:
      return absl::PermissionDeniedError(message);
    case ELOOP:
      return absl::InvalidArgumentError(absl::StrCat(std::string(what), " ", path, ": it is a link"));
    case EEXIST:
      return absl::AlreadyExistsError(
          absl::StrCat(std::string(what), " ", path, ": it is there already; choose another name, or remove it"));
    case ENOSPC:
    case EDQUOT:
      return MakeError(Reason::kDiskFull, message);
    case EFBIG:
      return MakeError(Reason::kFileTooLarge, message);
    case EROFS:
      return MakeError(Reason::kReadOnly, message);
    default:
      return absl::InternalError(message);
  }
}

absl::StatusOr<RegularFile> RegularFile::Open(const std::string& path) { return OpenAt(AT_FDCWD, path, path); }

absl::StatusOr<RegularFile> RegularFile::OpenAt(int folder_fd, const std::string& name, const std::string& path) {
  // O_NONBLOCK: a fifo must not hold us.
  UniqueFd fd(openat(folder_fd, name.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) return ErrnoStatus("open", path, errno);
  struct stat info;
  if (fstat(fd.get(), &info) != 0) return ErrnoStatus("stat", path, errno);
  if (!S_ISREG(info.st_mode)) return absl::InvalidArgumentError(absl::StrCat(path, ": not a regular file"));
  return RegularFile(path, std::move(fd), static_cast<uint64_t>(info.st_size));
}

absl::Status RegularFile::ReadAt(uint64_t offset, void* data, uint64_t size) const {
  char* out = static_cast<char*>(data);
  while (size > 0) {
    const ssize_t count = pread(fd_.get(), out, size, static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return ErrnoStatus("read", path_, errno);
    if (count == 0) return absl::InvalidArgumentError(absl::StrCat(path_, ": ends at byte ", offset, ", truncated"));
    out += count;
    offset += static_cast<uint64_t>(count);
    size -= static_cast<uint64_t>(count);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadFile(const std::string& path, uint64_t max_bytes) {
  ASSIGN_OR_RETURN(const RegularFile file, RegularFile::Open(path));
  if (file.bytes() > max_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": has ", file.bytes(), " bytes, the limit is ", max_bytes));
  }
  std::string content(file.bytes(), '\0');
  RETURN_IF_ERROR(file.ReadAt(0, content.data(), content.size()));
  return content;
}

absl::Status WriteAll(int fd, std::string_view content, const std::string& path) {
  while (!content.empty()) {
    const ssize_t count = write(fd, content.data(), content.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return ErrnoStatus("write", path, errno);
    content.remove_prefix(static_cast<size_t>(count));
  }
  return absl::OkStatus();
}

absl::Status SyncAndClose(UniqueFd fd, const std::string& path) {
  if (fsync(fd.get()) != 0) return ErrnoStatus("fsync", path, errno);
  return close(fd.Release()) == 0 ? absl::OkStatus() : ErrnoStatus("close", path, errno);
}

absl::Status SyncFolder(const std::string& path) {
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus("open", path, errno);
  const bool synced = fsync(fd.get()) == 0 || errno == EINVAL;  // some file systems of a network sync no folders
  return synced ? absl::OkStatus() : ErrnoStatus("fsync", path, errno);
}

absl::Status WriteFile(const std::string& path, std::string_view content) {
  UniqueFd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!fd.valid()) return ErrnoStatus("create", path, errno);
  RETURN_IF_ERROR(WriteAll(fd.get(), content, path));
  return SyncAndClose(std::move(fd), path);
}

absl::StatusOr<std::string> ResolvePath(const std::string& path) {
  char* resolved = realpath(path.c_str(), nullptr);
  if (resolved == nullptr) return ErrnoStatus("open", path, errno);
  std::string result = resolved;
  free(resolved);
  return result;
}

}  // namespace stemma
