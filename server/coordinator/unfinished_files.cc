#include "server/coordinator/unfinished_files.h"

#include <unistd.h>

#include <filesystem>
#include <string_view>
#include <system_error>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/base/temporary_file.h"
#include "common/base/temporary_folder.h"
#include "glog/logging.h"
#include "server/protocol/answers.h"
#include "server/store/folder.h"

namespace stemma::server {
namespace {

namespace fs = std::filesystem;

bool IsUnfinishedCalibration(const std::string& name) { return TargetOfTemporary(name) == "calibration.json"; }

bool IsUnfinishedExport(const std::string& name) { return absl::StartsWith(name, std::string(kUnfinishedPrefix)); }

std::vector<std::string> UnfinishedIn(const std::string& folder, bool (*is_unfinished)(const std::string&)) {
  std::vector<std::string> paths;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (is_unfinished(it->path().filename().string())) paths.push_back(it->path().string());
  }
  return paths;
}

}  // namespace

std::vector<std::string> UnfinishedExports(const std::string& data_directory) {
  return UnfinishedIn(ExportsFolder(data_directory), IsUnfinishedExport);
}

absl::Status MakeExportFolder(const std::string& data_directory, const std::string& name) {
  constexpr mode_t kMode = 0755;
  const std::string folder = ExportsFolder(data_directory);
  if (const int error = MakeFolders(folder); error != 0) return ErrnoStatus("create", folder, error);
  return MakeFolder(absl::StrCat(folder, "/", name), kMode);
}

std::string TakeFromItsWriters(const std::string& path) {
  if (path.back() == kRetiredSuffix) return path;
  if (rmdir(path.c_str()) == 0) return "";
  const std::string taken = absl::StrCat(path, std::string(1, kRetiredSuffix));
  const absl::Status renamed = RenameFolder(path, taken);
  LogUnfinished(path, renamed);
  return renamed.ok() ? taken : path;
}

void RemoveUnfinishedPath(const std::string& path) {
  const absl::Status removed = RemoveTree(path);
  if (removed.ok() && path.back() == kRetiredSuffix) return;  // its removal was said when its name was free
  LogUnfinished(path, removed);
}

void RemoveUnfinished(const std::string& data_directory) {
  for (const std::string& path : UnfinishedIn(data_directory, IsUnfinishedCalibration)) RemoveUnfinishedPath(path);
  for (const std::string& path : UnfinishedExports(data_directory)) RemoveUnfinishedPath(path);
}

}  // namespace stemma::server
