#include "common/base/system_memory.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

namespace stemma {
namespace {

constexpr int64_t kUnknown = std::numeric_limits<int64_t>::max();

int64_t MemAvailableBytes() {
  std::ifstream file("/proc/meminfo");
  std::string key;
  int64_t kib = 0;
  for (std::string line; file >> key >> kib && std::getline(file, line);) {
    if (key == "MemAvailable:") return kib * 1024;
  }
  return kUnknown;
}

// "max", which means no limit, does not parse and counts as unknown.
int64_t ReadNumber(const std::string& path) {
  std::ifstream file(path);
  int64_t number = 0;
  return file >> number ? number : kUnknown;
}

// The folder of this process's memory cgroup (v2); empty: it has none. In a container with a namespace of its own the
// path is "/".
std::string CgroupFolder() {
  std::ifstream file("/proc/self/cgroup");
  std::string line;
  std::getline(file, line);  // v2: one line "0::/path"
  return line.starts_with("0::") ? "/sys/fs/cgroup" + line.substr(3) : "";
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

}  // namespace

std::optional<int64_t> CgroupLimitBytes(const std::string& folder) {
  const int64_t limit = folder.empty() ? kUnknown : ReadNumber(folder + "/memory.max");
  return limit == kUnknown ? std::nullopt : std::optional(limit);
}

std::optional<int64_t> CgroupLeftBytes(const std::string& folder) {
  const std::optional<int64_t> limit = CgroupLimitBytes(folder);
  const int64_t current = limit ? ReadNumber(folder + "/memory.current") : kUnknown;
  if (current == kUnknown) return std::nullopt;
  const int64_t used = std::max<int64_t>(0, current - ReadStat(folder + "/memory.stat", "inactive_file"));
  return std::max<int64_t>(0, *limit - used);
}

int64_t AvailableMemoryBytes() {
  const int64_t bytes = std::min(MemAvailableBytes(), CgroupLeftBytes(CgroupFolder()).value_or(kUnknown));
  return bytes == kUnknown ? 0 : bytes;
}

int64_t MachineMemoryBytes() {
  const int64_t physical = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  return std::min(physical, CgroupLimitBytes(CgroupFolder()).value_or(kUnknown));
}

}  // namespace stemma
