// What the machine, or the container around this process, has and can still give. The default memory budget comes from
// it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace stemma {

// The smaller of the kernel's MemAvailable and what the memory cgroup (v2) leaves; 0 if neither can be read.
int64_t AvailableMemoryBytes();

// The smaller of the machine's physical memory and the memory cgroup's limit.
int64_t MachineMemoryBytes();

// The limit of the memory cgroup of that folder, and what it leaves. Pages of files that nothing has touched for a
// while (inactive_file) count as left, as in MemAvailable: the kernel drops them for whoever needs memory, and a worker
// that has read its model's files has made many. Nothing: there is no limit, or it cannot be read.
std::optional<int64_t> CgroupLimitBytes(const std::string& folder);
std::optional<int64_t> CgroupLeftBytes(const std::string& folder);

}  // namespace stemma
