#include "worker/backend/cpu/cpu_backend.h"

#include <utility>

#include "worker/backend/cpu/cpu_kernels.h"
#include "worker/backend/cpu/split_attention.h"
#include "worker/memory/cpu_allocator.h"
#include "worker/memory/thread_copy_engine.h"

namespace stemma::worker {

Backend MakeCpuBackend(std::unique_ptr<AttentionKernel> kernel) {
  InstallCpuAllocator();
  return {.name = "cpu",
          .device = at::kCPU,
          .kernels = CpuKernels(),
          .attention = std::make_shared<SplitAttention>(std::move(kernel)),
          .memory_stats = CpuMemoryStats,
          .reset_peak_bytes = ResetPeakBytes,
          .make_copy_engine = [] { return std::unique_ptr<CopyEngine>(std::make_unique<ThreadCopyEngine>()); },
          .host_reads_are_free = true};
}

}  // namespace stemma::worker
