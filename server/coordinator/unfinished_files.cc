#include "server/coordinator/unfinished_files.h"

#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/strings/match.h"
#include "common/base/temporary_file.h"
#include "glog/logging.h"
#include "server/protocol/answers.h"

namespace stemma::server {
namespace {

namespace fs = std::filesystem;

bool IsUnfinishedCalibration(const std::string& name) { return TargetOfTemporary(name) == "calibration.json"; }

bool IsUnfinishedExport(const std::string& name) { return absl::StartsWith(name, ".tmp-"); }

// Listed before any of it goes: what a folder that changes is listed as is not said.
std::vector<fs::path> UnfinishedIn(const std::string& folder, bool (*is_unfinished)(const std::string&)) {
  std::vector<fs::path> paths;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (is_unfinished(it->path().filename().string())) paths.push_back(it->path());
  }
  return paths;
}

void RemoveFrom(const std::string& folder, bool (*is_unfinished)(const std::string&)) {
  for (const fs::path& path : UnfinishedIn(folder, is_unfinished)) {
    std::error_code failed;
    fs::remove_all(path, failed);
    LOG(INFO) << "removed " << path.string() << ", which a process that ended left unfinished"
              << (failed ? ": " + failed.message() : "");
  }
}

}  // namespace

void RemoveUnfinishedExports(const std::string& data_directory) {
  RemoveFrom(ExportsFolder(data_directory), IsUnfinishedExport);
}

void RemoveUnfinished(const std::string& data_directory) {
  RemoveFrom(data_directory, IsUnfinishedCalibration);
  RemoveUnfinishedExports(data_directory);
}

}  // namespace stemma::server
