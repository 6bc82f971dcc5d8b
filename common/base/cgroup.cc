#include "common/base/cgroup.h"

#include <algorithm>
#include <fstream>
#include <iterator>

namespace stemma {
namespace {

constexpr char kRoot[] = "/sys/fs/cgroup";
constexpr std::string_view kOwnGroup = "0::";  // what the line of v2 begins with

// "max", which means no limit, does not parse and counts as none.
std::optional<int64_t> ReadNumber(const std::string& path) {
  std::ifstream file(path);
  int64_t number = 0;
  return file >> number ? std::optional(number) : std::nullopt;
}

// Returns the row of memory.stat; 0 if it cannot be read.
int64_t ReadStat(const std::string& path, const std::string& row) {
  std::ifstream file(path);
  std::string key;
  for (int64_t number = 0; file >> key >> number;) {
    if (key == row) return std::max<int64_t>(0, number);
  }
  return 0;
}

std::optional<int64_t> Lesser(std::optional<int64_t> a, std::optional<int64_t> b) {
  return a && b ? std::min(*a, *b) : a ? a : b;
}

std::optional<int64_t> LimitBytes(const std::string& folder) {
  return Lesser(ReadNumber(folder + "/memory.max"), ReadNumber(folder + "/memory.high"));
}

std::optional<int64_t> LeftBytes(const std::string& folder) {
  const std::optional<int64_t> limit = LimitBytes(folder);
  const std::optional<int64_t> current = limit ? ReadNumber(folder + "/memory.current") : std::nullopt;
  if (!current) return std::nullopt;
  const std::string stat = folder + "/memory.stat";
  const int64_t files = ReadStat(stat, "inactive_file") + ReadStat(stat, "active_file");
  const int64_t used = std::max<int64_t>(0, *current - files);
  return std::max<int64_t>(0, *limit - used);
}

std::optional<int64_t> Cores(const std::string& folder) {
  std::ifstream file(folder + "/cpu.max");
  int64_t quota_us = 0, period_us = 0;
  if (!(file >> quota_us >> period_us) || quota_us <= 0 || period_us <= 0) return std::nullopt;
  return (quota_us - 1) / period_us + 1;
}

using NumberOf = std::optional<int64_t> (*)(const std::string& folder);

std::optional<int64_t> Least(std::span<const std::string> folders, NumberOf of) {
  std::optional<int64_t> least;
  for (const std::string& folder : folders) least = Lesser(least, of(folder));
  return least;
}

std::string FolderOfLeast(std::span<const std::string> folders, NumberOf of) {
  std::optional<int64_t> least;
  std::string decides;
  for (const std::string& folder : folders) {  // from the innermost group on
    const std::optional<int64_t> number = of(folder);
    if (!number || (least && *least < *number)) continue;
    least = number;
    decides = folder;
  }
  return decides;
}

}  // namespace

std::vector<std::string> CgroupFoldersOf(const std::string& root, std::string_view proc_self_cgroup) {
  for (std::string_view rest = proc_self_cgroup; !rest.empty();) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    if (!line.starts_with(kOwnGroup)) continue;
    std::vector<std::string> folders;
    // In a container with a namespace of its own the path is "/".
    for (std::string_view path = line.substr(kOwnGroup.size()); path.starts_with('/') && path.size() > 1;
         path = path.substr(0, path.rfind('/'))) {
      folders.push_back(root + std::string(path));
    }
    folders.push_back(root);
    return folders;
  }
  return {};
}

std::vector<std::string> OwnCgroupFolders() {
  std::ifstream file("/proc/self/cgroup");
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  return CgroupFoldersOf(kRoot, text);
}

std::optional<int64_t> CgroupLimitBytes(std::span<const std::string> folders) { return Least(folders, LimitBytes); }

std::optional<int64_t> CgroupLeftBytes(std::span<const std::string> folders) { return Least(folders, LeftBytes); }

std::optional<int64_t> CgroupCores(std::span<const std::string> folders) { return Least(folders, Cores); }

std::string CgroupOfLeftBytes(std::span<const std::string> folders) { return FolderOfLeast(folders, LeftBytes); }

std::string CgroupOfCores(std::span<const std::string> folders) { return FolderOfLeast(folders, Cores); }

}  // namespace stemma
