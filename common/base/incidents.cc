#include "common/base/incidents.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/file.h"
#include "common/base/status_macros.h"
#include "glog/logging.h"

namespace stemma {
namespace {

namespace fs = std::filesystem;

std::string FolderIn(const std::string& data_directory) { return data_directory + "/incidents"; }

absl::Status MakeFolder(const std::string& path) {
  if (mkdir(path.c_str(), 0755) == 0 || errno == EEXIST) return absl::OkStatus();
  return ErrnoStatus("create", path, errno);
}

bool IsIncidentName(const std::string& name) {
  const size_t dash = name.find('-');
  if (dash < 6 || dash == std::string::npos || name.size() < dash + 5) return false;
  return std::all_of(name.begin(), name.end(), [](char c) { return c == '-' || absl::ascii_isdigit(c); });
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
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0644);
  if (fd < 0) return ErrnoStatus("open", path, errno);
  const absl::Status status = WriteAll(fd, content, path);
  close(fd);
  return status;
}

void RemoveOldIncidents(const std::string& data_directory) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(FolderIn(data_directory), error), end; !error && entry != end;
       entry.increment(error)) {
    if (IsIncidentName(entry->path().filename().string())) names.push_back(entry->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  for (size_t i = 0; i + kIncidentsMax < names.size(); ++i) {
    fs::remove_all(absl::StrCat(FolderIn(data_directory), "/", names[i]), error);
    LOG_IF(WARNING, error.value() != 0) << "incident " << names[i] << " stays: " << error.message();
  }
}

}  // namespace stemma
