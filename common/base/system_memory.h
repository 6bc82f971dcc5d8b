// What the machine, or the container around this process, has and can still give. The default memory budget comes from
// it.
#pragma once

#include <cstdint>

namespace stemma {

// The smaller of the kernel's MemAvailable and what the memory cgroups (v2) leave; 0 if neither can be read.
int64_t AvailableMemoryBytes();

// The smaller of the machine's physical memory and the memory cgroups' limit.
int64_t MachineMemoryBytes();

}  // namespace stemma
