// The CPU allocator of a worker: counts every tensor byte, and keeps freed blocks for the next wave.
//
// Why: the memory of a phase is a planned number, so it must be measurable; and a fresh mapping for every activation
// costs a page fault per 4 KiB, which takes as long as the elementwise work on it. Large blocks come from mappings of
// their own with huge pages asked for, and go back to a free list of their size class.
//
// Install before the first tensor. Thread safe. Counted bytes are those asked for by live tensors, rounded to 64.
#pragma once

#include "worker/memory/memory_stats.h"

namespace stemma::worker {

// Makes it LibTorch's CPU allocator for the rest of the process. Idempotent.
void InstallCpuAllocator();

MemoryStats CpuMemoryStats();
void ResetPeakBytes();

}  // namespace stemma::worker
