#include "common/base/ready_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/address.h"
#include "common/base/file.h"
#include "common/base/status_macros.h"
#include "common/base/temporary_file.h"

namespace stemma {
namespace {

constexpr uint64_t kBytesMax = 4096;

absl::Status Reject(const std::string& path, const std::string& why) {
  return absl::InvalidArgumentError(absl::StrCat("the ready file ", path, " ", why));
}

bool IsAddressLine(const std::string& line) {
  const std::vector<std::string> words = absl::StrSplit(line, ' ');
  return words.size() <= 2 && ParseListenAddress(words.back()).ok();
}

// Empty is what mktemp makes: nothing is lost by replacing it.
bool IsReadyText(const std::string& text) {
  std::vector<std::string> lines = absl::StrSplit(text, '\n');
  if (lines.back().empty()) lines.pop_back();
  return std::all_of(lines.begin(), lines.end(), IsAddressLine);
}

absl::Status CheckFolder(const std::string& path) {
  std::string folder = std::filesystem::path(path).parent_path().string();
  if (folder.empty()) folder = ".";
  struct stat info;
  if (stat(folder.c_str(), &info) != 0) {
    return Reject(path, absl::StrCat("cannot be written: ", folder, ": ", std::strerror(errno)));
  }
  if (!S_ISDIR(info.st_mode)) return Reject(path, absl::StrCat("cannot be written: ", folder, " is no folder"));
  if (access(folder.c_str(), W_OK | X_OK) != 0) {
    return Reject(path, absl::StrCat("cannot be written: ", folder, ": ", std::strerror(errno)));
  }
  return absl::OkStatus();
}

// Whether the path leads to that open file.
bool IsAt(const std::string& path, int fd) {
  struct stat ours, there;
  return fstat(fd, &ours) == 0 && lstat(path.c_str(), &there) == 0 && ours.st_dev == there.st_dev &&
         ours.st_ino == there.st_ino;
}

}  // namespace

absl::Status ReadyFile::Check(const std::string& path) {
  RETURN_IF_ERROR(CheckFolder(path));
  struct stat info;
  if (lstat(path.c_str(), &info) != 0) {
    return errno == ENOENT ? absl::OkStatus() : Reject(path, absl::StrCat("cannot be written: ", std::strerror(errno)));
  }
  if (!S_ISREG(info.st_mode)) return Reject(path, "is there already and is no file: name another path");
  const absl::StatusOr<RegularFile> file = RegularFile::Open(path);
  if (!file.ok()) return Reject(path, absl::StrCat("cannot be read: ", file.status().message()));
  if (flock(file->fd(), LOCK_SH | LOCK_NB) != 0) return Reject(path, "is of a server that runs: name another path");
  std::string text(std::min(file->bytes(), kBytesMax), '\0');
  if (file->bytes() > kBytesMax || !file->ReadAt(0, text.data(), text.size()).ok() || !IsReadyText(text)) {
    return Reject(path, "is there already and no server wrote it, so it is left as it is: name another path");
  }
  return absl::OkStatus();
}

absl::Status ReadyFile::Clear(const std::string& path) {
  RETURN_IF_ERROR(Check(path));
  const absl::StatusOr<RegularFile> left = RegularFile::Open(path);
  if (!left.ok()) return absl::OkStatus();
  // Another process may have written one since: its lock says so, and the file that is locked here is removed alone.
  if (flock(left->fd(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) return Reject(path, "is of a server that runs: name another path");
    return absl::OkStatus();  // a file system that locks no file that is read alone: Write replaces it
  }
  if (IsAt(path, left->fd()) && unlink(path.c_str()) != 0 && errno != ENOENT) {
    return Reject(path, absl::StrCat("cannot be removed: ", std::strerror(errno)));
  }
  return absl::OkStatus();
}

absl::StatusOr<ReadyFile> ReadyFile::Write(const std::string& path, std::string_view content) {
  RETURN_IF_ERROR(Check(path));
  ASSIGN_OR_RETURN(TemporaryFile file, TemporaryFile::Create(path));
  if (flock(file.fd(), LOCK_EX | LOCK_NB) != 0) return ErrnoStatus("lock", path, errno);
  RETURN_IF_ERROR(file.Write(content));
  RETURN_IF_ERROR(file.Commit());
  return ReadyFile(path, file.TakeFd());
}

void ReadyFile::Remove() {
  if (!fd_.valid()) return;
  if (IsAt(path_, fd_.get())) unlink(path_.c_str());
  fd_.Reset();
}

}  // namespace stemma
