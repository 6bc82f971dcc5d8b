// What the machine, or the container around this process, has and can still give. The default memory budget comes from
// it.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace stemma {

// The smaller of the kernel's MemAvailable and what the memory cgroups (v2) leave; 0 if neither can be read, and 1
// where nothing is left: who reads 0 takes the number for one that is not known.
int64_t AvailableMemoryBytes();
int64_t AvailableMemoryBytesIn(std::span<const std::string> cgroup_folders);  // the same, in these groups

// The control group that AvailableMemoryBytes is of; empty: it is the machine's.
std::string AvailableMemoryGroup();
std::string AvailableMemoryGroupIn(std::span<const std::string> cgroup_folders);  // the same, in these groups

// The smaller of the machine's physical memory and the memory cgroups' limit.
int64_t MachineMemoryBytes();

}  // namespace stemma
