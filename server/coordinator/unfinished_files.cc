#include "server/coordinator/unfinished_files.h"

#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/strings/match.h"
#include "common/base/temporary_file.h"
#include "glog/logging.h"

namespace stemma::server {
namespace {

namespace fs = std::filesystem;

bool IsUnfinished(const fs::path& path) {
  const std::string name = path.filename().string();
  return absl::StartsWith(name, ".tmp-") || TargetOfTemporary(name) == "calibration.json";
}

// Listed before any of it goes: what a folder that changes is listed as is not said.
std::vector<fs::path> UnfinishedIn(const std::string& folder) {
  std::vector<fs::path> paths;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (IsUnfinished(it->path())) paths.push_back(it->path());
  }
  return paths;
}

}  // namespace

void RemoveUnfinished(const std::string& folder) {
  for (const fs::path& path : UnfinishedIn(folder)) {
    std::error_code failed;
    fs::remove_all(path, failed);
    LOG(INFO) << "removed " << path.string() << ", which a process that ended left unfinished"
              << (failed ? ": " + failed.message() : "");
  }
}

}  // namespace stemma::server
