// How much memory this machine has, and how much of it could be had now without swapping.
#pragma once

#include <cstdint>

namespace stemma {

uint64_t MachineMemoryBytes();
uint64_t AvailableMemoryBytes();  // page cache counts as available; 0: unknown

}  // namespace stemma
