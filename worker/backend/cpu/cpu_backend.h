// The CPU backend: our fused kernels, split attention over our attention kernel, LibTorch's GEMMs.
//
// Promises: results do not depend on the number of threads.
#pragma once

#include <memory>

#include "worker/backend/backend.h"
#include "worker/backend/cpu/attention_kernel.h"

namespace stemma::worker {

// Tests give a wrong kernel. Installs the counting allocator (worker/memory/cpu_allocator.h).
Backend MakeCpuBackend(std::unique_ptr<AttentionKernel> kernel = std::make_unique<CpuAttention>());

}  // namespace stemma::worker
