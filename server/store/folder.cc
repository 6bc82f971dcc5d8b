#include "server/store/folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/base/status_macros.h"
#include "common/base/temporary_folder.h"
#include "glog/logging.h"

namespace stemma::server {

absl::Status MakeFolder(const std::string& path, mode_t mode) {
  if (mkdir(path.c_str(), mode) != 0) {
    if (errno != EEXIST) return ErrnoStatus("create", path, errno);
    struct stat info;
    if (lstat(path.c_str(), &info) != 0) return ErrnoStatus("stat", path, errno);
    if (S_ISLNK(info.st_mode)) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": is a link; mount its directory there instead"));
    }
    if (!S_ISDIR(info.st_mode)) return absl::InvalidArgumentError(absl::StrCat(path, ": is not a directory"));
  }
  // A server that was killed may have made it and not come to this point, so that it is done for one that is there too.
  return SyncFolder(std::filesystem::path(path).parent_path().string());
}

absl::Status MakePrivateFolder(const std::string& path) { return MakeFolder(path, 0700); }

absl::StatusOr<std::vector<std::string>> NamesIn(const std::string& folder) {
  namespace fs = std::filesystem;
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  if (error) return ErrnoStatus("read", folder, error.value());
  std::sort(names.begin(), names.end());
  return names;
}

absl::StatusOr<std::string> RetireFolder(const std::string& parent, const std::string& name) {
  std::string temporary = absl::StrCat(std::string(kUnfinishedPrefix), name, std::string(1, kRetiredSuffix));
  const std::string from = absl::StrCat(parent, "/", name), to = absl::StrCat(parent, "/", temporary);
  struct stat info;
  if (lstat(from.c_str(), &info) != 0) {
    const int error = errno;
    if (error != ENOENT || lstat(to.c_str(), &info) != 0) return ErrnoStatus("remove", from, error);
    RETURN_IF_ERROR(SyncFolder(parent));  // an earlier call may have failed just there
    return temporary;
  }
  if (!S_ISDIR(info.st_mode)) return absl::NotFoundError(absl::StrCat(from, ": is not a directory"));
  RETURN_IF_ERROR(RemoveTree(to));  // an earlier one of that name, whose removal failed
  RETURN_IF_ERROR(RenameFolder(from, to));
  RETURN_IF_ERROR(SyncFolder(parent));
  return temporary;
}

absl::Status RemoveTree(const std::string& path) {
  std::error_code error;
  std::filesystem::remove_all(path, error);
  return error ? ErrnoStatus("remove", path, error.value()) : absl::OkStatus();
}

void LogUnfinished(const std::string& path, const absl::Status& removed) {
  LOG_IF(INFO, removed.ok()) << "removed " << path << ", which a process that ended left unfinished";
  LOG_IF(WARNING, !removed.ok()) << "what nobody needs stays: " << removed.message();
}

}  // namespace stemma::server
