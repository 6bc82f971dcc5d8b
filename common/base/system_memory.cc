#include "common/base/system_memory.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

#include "common/base/cgroup.h"

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

}  // namespace

int64_t AvailableMemoryBytes() { return AvailableMemoryBytesIn(OwnCgroupFolders()); }

int64_t AvailableMemoryBytesIn(std::span<const std::string> cgroup_folders) {
  const int64_t bytes = std::min(MemAvailableBytes(), CgroupLeftBytes(cgroup_folders).value_or(kUnknown));
  return bytes == kUnknown ? 0 : std::max<int64_t>(1, bytes);
}

std::string AvailableMemoryGroup() { return AvailableMemoryGroupIn(OwnCgroupFolders()); }

std::string AvailableMemoryGroupIn(std::span<const std::string> cgroup_folders) {
  const bool is_groups = CgroupLeftBytes(cgroup_folders).value_or(kUnknown) < MemAvailableBytes();
  return is_groups ? CgroupOfLeftBytes(cgroup_folders) : "";
}

int64_t MachineMemoryBytes() {
  const int64_t physical = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  return std::min(physical, CgroupLimitBytes(OwnCgroupFolders()).value_or(kUnknown));
}

}  // namespace stemma
