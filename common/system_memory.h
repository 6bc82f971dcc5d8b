// What the machine, or the container around this process, can still give. The default memory budget comes from it.
#pragma once

#include <cstdint>

namespace stemma {

// The smaller of the kernel's MemAvailable and what the memory cgroup (v2) leaves; 0 if neither can be read.
int64_t AvailableMemoryBytes();

// Physical memory of the machine.
int64_t MachineMemoryBytes();

}  // namespace stemma
