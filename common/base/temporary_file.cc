#include "common/base/temporary_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/base/status_macros.h"

namespace stemma {
namespace {

constexpr mode_t kFileMode = 0644;

}  // namespace

absl::StatusOr<TemporaryFile> TemporaryFile::Create(const std::string& target) {
  const std::filesystem::path place(target);
  std::string path = (place.parent_path() / absl::StrCat(".", place.filename().string(), ".XXXXXX")).string();
  const int fd = mkostemp(path.data(), O_CLOEXEC);
  if (fd < 0) return ErrnoStatus("create", target, errno);
  TemporaryFile file(target, path, fd);
  if (fchmod(fd, kFileMode) != 0) return ErrnoStatus("chmod", path, errno);
  return file;
}

TemporaryFile::TemporaryFile(std::string target, std::string path, int fd)
    : target_(std::move(target)), path_(std::move(path)), fd_(fd) {}

TemporaryFile::TemporaryFile(TemporaryFile&& other) noexcept
    : target_(std::move(other.target_)),
      path_(std::exchange(other.path_, std::string())),
      fd_(std::exchange(other.fd_, -1)) {}

TemporaryFile::~TemporaryFile() {
  if (!path_.empty()) unlink(path_.c_str());
  if (fd_ >= 0) close(fd_);
}

absl::Status TemporaryFile::Write(std::string_view content) { return WriteAll(fd_, content, target_); }

absl::Status TemporaryFile::Commit() {
  if (fsync(fd_) != 0) return ErrnoStatus("fsync", target_, errno);
  if (rename(path_.c_str(), target_.c_str()) != 0) return ErrnoStatus("write", target_, errno);
  path_.clear();
  return absl::OkStatus();
}

int TemporaryFile::TakeFd() { return std::exchange(fd_, -1); }

absl::Status ReplaceFile(const std::string& path, std::string_view content) {
  ASSIGN_OR_RETURN(TemporaryFile file, TemporaryFile::Create(path));
  RETURN_IF_ERROR(file.Write(content));
  return file.Commit();
}

}  // namespace stemma
