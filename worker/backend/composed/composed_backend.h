// The composed backend: every entry of the kernel table in plain ATen ops, on any device that LibTorch has.
//
// It is the reference that each fused kernel's test compares with, the fallback where a kernel is not admitted, and
// what shows that no layer, op or engine code knows its device. Correct first: it makes temporaries that fused kernels
// do not, and plans count fused kernels' bytes.
#pragma once

#include "worker/backend/backend.h"

namespace stemma::worker {

Kernels ComposedKernels();

// Attention on whole scores, without a split: [H, rows, C + rows] of each run of spans that share an ancestor.
std::shared_ptr<const AttentionOp> MakeComposedAttention();

// Makes it for the CPU, or for a device whose allocator gives these statistics.
Backend MakeComposedBackend();
Backend MakeComposedBackend(at::Device device, MemoryStats (*memory_stats)(), void (*reset_peak_bytes)());

}  // namespace stemma::worker
