#include "common/base/temporary_folder.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/base/status_macros.h"

namespace stemma {
namespace {

namespace fs = std::filesystem;

constexpr mode_t kFolderMode = 0755;

}  // namespace

absl::StatusOr<TemporaryFolder> TemporaryFolder::Create(const std::string& target) {
  const fs::path place(target);
  const std::string parent = place.parent_path().string();
  if (const int error = MakeFolders(parent); error != 0) return ErrnoStatus("create", parent, error);
  std::string path = (place.parent_path() / absl::StrCat(".tmp-", place.filename().string(), "-XXXXXX")).string();
  if (mkdtemp(path.data()) == nullptr) return ErrnoStatus("create", target, errno);
  TemporaryFolder folder(target, path);
  if (chmod(path.c_str(), kFolderMode) != 0) return ErrnoStatus("chmod", path, errno);
  return folder;
}

absl::StatusOr<TemporaryFolder> TemporaryFolder::Take(const std::string& path, const std::string& target) {
  std::error_code error;
  if (fs::is_directory(path, error)) return TemporaryFolder(target, path);
  return absl::NotFoundError(absl::StrCat(path, ": the folder that was made for ", target, " is not there"));
}

TemporaryFolder::TemporaryFolder(std::string target, std::string path)
    : target_(std::move(target)), path_(std::move(path)) {}

TemporaryFolder::TemporaryFolder(TemporaryFolder&& other) noexcept
    : target_(std::move(other.target_)), path_(std::exchange(other.path_, std::string())) {}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;  // what stays is removed at the server's next start
  if (!path_.empty()) fs::remove_all(path_, ignored);
}

absl::Status TemporaryFolder::Commit() {
  RETURN_IF_ERROR(SyncFolder(path_));
  RETURN_IF_ERROR(RenameFolder(path_, target_));
  // Whoever is told of the name may rely on it: after a power failure too.
  if (absl::Status synced = SyncFolder(fs::path(target_).parent_path().string()); !synced.ok()) {
    return rename(target_.c_str(), path_.c_str()) == 0 ? synced : ErrnoStatus("rename", target_, errno);
  }
  path_.clear();
  return absl::OkStatus();
}

absl::Status RenameFolder(const std::string& from, const std::string& to) {
  int failed = renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE);
  // A file system without that flag: a plain rename replaces an empty folder, and nothing else.
  if (failed != 0 && errno == EINVAL) failed = rename(from.c_str(), to.c_str());
  return failed == 0 ? absl::OkStatus() : ErrnoStatus("create", to, errno == ENOTEMPTY ? EEXIST : errno);
}

int MakeFolders(const std::string& path) {
  std::error_code ignored;  // what cannot be looked at cannot be made either
  for (size_t end = 0; end != path.npos;) {
    end = path.find('/', end + 1);
    const std::string folder = path.substr(0, end);
    if (folder.empty() || fs::is_directory(folder, ignored)) continue;
    if (mkdir(folder.c_str(), kFolderMode) != 0 && errno != EEXIST) return errno;
  }
  return 0;
}

}  // namespace stemma
