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

constexpr std::string_view kRandomPart = ".XXXXXX";  // as mkostemp fills it

}  // namespace

absl::StatusOr<TemporaryFile> TemporaryFile::Create(const std::string& target, mode_t mode) {
  const std::filesystem::path place(target);
  std::string path =
      (place.parent_path() / absl::StrCat(".", place.filename().string(), std::string(kRandomPart))).string();
  UniqueFd fd(mkostemp(path.data(), O_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus("create", target, errno);
  TemporaryFile file(target, path, std::move(fd));
  if (fchmod(file.fd(), mode) != 0) return ErrnoStatus("chmod", path, errno);
  return file;
}

TemporaryFile::TemporaryFile(std::string target, std::string path, UniqueFd fd)
    : target_(std::move(target)), path_(std::move(path)), fd_(std::move(fd)) {}

TemporaryFile::TemporaryFile(TemporaryFile&& other) noexcept
    : target_(std::move(other.target_)), path_(std::exchange(other.path_, std::string())), fd_(std::move(other.fd_)) {}

TemporaryFile::~TemporaryFile() {
  if (!path_.empty()) unlink(path_.c_str());
}

absl::Status TemporaryFile::Write(std::string_view content) { return WriteAll(fd_.get(), content, target_); }

absl::Status TemporaryFile::Commit() {
  if (fsync(fd_.get()) != 0) return ErrnoStatus("fsync", target_, errno);
  if (rename(path_.c_str(), target_.c_str()) != 0) return ErrnoStatus("write", target_, errno);
  path_.clear();
  return absl::OkStatus();
}

std::string_view TargetOfTemporary(std::string_view file_name) {
  const size_t dot = file_name.rfind('.');
  if (!file_name.starts_with('.') || dot == 0 || file_name.size() != dot + kRandomPart.size()) return "";
  return file_name.substr(1, dot - 1);
}

absl::Status ReplaceFile(const std::string& path, std::string_view content) {
  ASSIGN_OR_RETURN(TemporaryFile file, TemporaryFile::Create(path));
  RETURN_IF_ERROR(file.Write(content));
  return file.Commit();
}

}  // namespace stemma
