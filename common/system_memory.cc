#include "common/system_memory.h"

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

int64_t CgroupLeftBytes() {
  // cgroup v2: one line "0::/path". In a container with its own namespace the path is "/".
  std::ifstream file("/proc/self/cgroup");
  std::string line;
  std::getline(file, line);
  if (!line.starts_with("0::")) return kUnknown;
  const std::string folder = "/sys/fs/cgroup" + line.substr(3) + "/";
  const int64_t limit = ReadNumber(folder + "memory.max"), used = ReadNumber(folder + "memory.current");
  return limit == kUnknown || used == kUnknown ? kUnknown : std::max<int64_t>(0, limit - used);
}

}  // namespace

int64_t AvailableMemoryBytes() {
  const int64_t bytes = std::min(MemAvailableBytes(), CgroupLeftBytes());
  return bytes == kUnknown ? 0 : bytes;
}

int64_t MachineMemoryBytes() { return int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE); }

}  // namespace stemma
