#include "common/base/incidents.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/file.h"
#include "common/base/status_macros.h"
#include "common/base/unique_fd.h"
#include "glog/logging.h"

namespace stemma {
namespace {

namespace fs = std::filesystem;

// Log lines name requests and paths: as the journal, they are for the server's user alone.
constexpr mode_t kFolderMode = 0700, kFileMode = 0600;

std::string FolderIn(const std::string& data_directory) { return data_directory + "/incidents"; }

absl::Status MakeFolder(const std::string& path) {
  if (mkdir(path.c_str(), kFolderMode) == 0 || errno == EEXIST) return absl::OkStatus();
  return ErrnoStatus("create", path, errno);
}

// The epoch and the generation: the order of time.
using Age = std::pair<uint64_t, uint64_t>;

// Null: no incident has this name.
std::optional<Age> AgeOf(const std::string& name) {
  const size_t dash = name.find('-');
  uint64_t epoch = 0, generation = 0;
  if (dash == std::string::npos || !absl::SimpleAtoi(name.substr(0, dash), &epoch) ||
      !absl::SimpleAtoi(name.substr(dash + 1), &generation) || IncidentName(epoch, generation) != name) {
    return std::nullopt;
  }
  return Age(epoch, generation);
}

}  // namespace

std::string IncidentName(uint64_t epoch, uint64_t generation) {
  return absl::StrFormat("%06u-%04u", epoch, generation);
}

absl::Status WriteIncidentFile(const std::string& data_directory, const std::string& incident, const std::string& file,
                               std::string_view content) {
  const std::string folder = absl::StrCat(FolderIn(data_directory), "/", incident);
  RETURN_IF_ERROR(MakeFolder(FolderIn(data_directory)));
  RETURN_IF_ERROR(MakeFolder(folder));
  const std::string path = absl::StrCat(folder, "/", file);
  const UniqueFd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, kFileMode));
  return fd.valid() ? WriteAll(fd.get(), content, path) : ErrnoStatus("open", path, errno);
}

void RemoveOldIncidents(const std::string& data_directory) {
  std::vector<Age> ages;
  std::error_code error;
  for (fs::directory_iterator entry(FolderIn(data_directory), error), end; !error && entry != end;
       entry.increment(error)) {
    if (const std::optional<Age> age = AgeOf(entry->path().filename().string())) ages.push_back(*age);
  }
  std::sort(ages.begin(), ages.end());
  for (size_t i = 0; i + kIncidentsMax < ages.size(); ++i) {
    const std::string name = IncidentName(ages[i].first, ages[i].second);
    fs::remove_all(absl::StrCat(FolderIn(data_directory), "/", name), error);
    LOG_IF(WARNING, error.value() != 0) << "incident " << name << " stays: " << error.message();
  }
}

}  // namespace stemma
