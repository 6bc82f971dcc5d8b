#include "worker/backend/composed/composed_backend.h"

#include "worker/backend/composed/composed_kernels.h"
#include "worker/memory/cpu_allocator.h"
#include "worker/memory/thread_copy_engine.h"

namespace stemma::worker {
namespace {

std::unique_ptr<CopyEngine> MakeCopyEngine() { return std::make_unique<ThreadCopyEngine>(); }

}  // namespace

Kernels ComposedKernels() {
  return {.rms_norm_forward = composed::RmsNormForward,
          .rms_norm_backward = composed::RmsNormBackward,
          .swiglu_forward = composed::SwigluForward,
          .swiglu_backward = composed::SwigluBackward,
          .qkv_forward = composed::QkvForward,
          .qkv_backward = composed::QkvBackward,
          .embedding_backward = composed::EmbeddingBackward,
          .head_forward = composed::HeadForward,
          .head_backward = composed::HeadBackward,
          .loss = composed::Loss,
          .add_weight_gradient = composed::AddWeightGradient,
          .logits = composed::Logits,
          .logits_backward = composed::LogitsBackward,
          .vector_norm = composed::VectorNorm,
          .first_nonfinite = composed::FirstNonfinite,
          .word_sum = composed::WordSum};
}

Backend MakeComposedBackend() {
  InstallCpuAllocator();
  Backend backend = MakeComposedBackend(at::kCPU, CpuMemoryStats, ResetPeakBytes);
  backend.host_reads_are_free = true;
  return backend;
}

Backend MakeComposedBackend(at::Device device, MemoryStats (*memory_stats)(), void (*reset_peak_bytes)()) {
  return {.name = "composed",
          .device = device,
          .kernels = ComposedKernels(),
          .attention = MakeComposedAttention(),
          .memory_stats = memory_stats,
          .reset_peak_bytes = reset_peak_bytes,
          .make_copy_engine = MakeCopyEngine,
          .host_reads_are_free = false};
}

}  // namespace stemma::worker
