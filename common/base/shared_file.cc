#include "common/base/shared_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/base/free_bytes.h"
#include "common/base/status_macros.h"

namespace stemma {
namespace {

// Written between two looks at the disk: each of several ranks looks before the others have written theirs.
constexpr uint64_t kUnseenBytes = 1 << 20;

// A disk that does not say what it has left is written to.
absl::Status CheckRoom(uint64_t bytes, const std::string& path) {
  const std::optional<uint64_t> free_bytes = FreeBytes(path);
  if (!free_bytes || *free_bytes >= kLeftForJournalBytes + bytes) return absl::OkStatus();
  return ErrnoStatus("keep room for the journal beside", path, ENOSPC);
}

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
  UniqueFd fd(open(path.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0644));
  if (!fd.valid()) return ErrnoStatus("create", path, errno);
  struct stat info;
  if (fstat(fd.get(), &info) != 0) return ErrnoStatus("stat", path, errno);
  if (!S_ISREG(info.st_mode)) return absl::InvalidArgumentError(absl::StrCat(path, ": not a regular file"));
  return SharedFile(path, std::move(fd));
}

absl::Status SharedFile::Write(const ByteRuns& runs, uint64_t first, std::string_view bytes) {
  for (uint64_t done = 0; done < bytes.size(); done += kUnseenBytes) {
    const std::string_view piece = bytes.substr(done, kUnseenBytes);
    RETURN_IF_ERROR(CheckRoom(piece.size(), path_));
    RETURN_IF_ERROR(ForEachRun(runs, first + done, piece.size(), [&](uint64_t place, uint64_t written, uint64_t count) {
      return WriteAt(fd_.get(), place, piece.substr(written, count), path_);
    }));
  }
  return absl::OkStatus();
}

absl::Status SharedFile::Close() { return SyncAndClose(std::move(fd_), path_); }

}  // namespace stemma
