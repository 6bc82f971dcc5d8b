#include "worker/backend/cuda/cuda_backend.h"

#include <ATen/Context.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "worker/backend/cuda/attention/bucketed_calls.h"
#include "worker/backend/cuda/attention/cudnn_calls.h"
#include "worker/backend/cuda/attention/fa2_calls.h"
#include "worker/backend/cuda/attention/flash_attention.h"
#include "worker/backend/cuda/cuda_kernels.h"
#include "worker/backend/cuda/cuda_memory.h"
#include "worker/backend/cuda/cuda_side_queue.h"
#include "worker/backend/cuda/cuda_transfer.h"
#include "worker/backend/cuda/kernels/head.h"
#include "worker/backend/cuda/products.h"
#include "worker/memory/cuda_copy_engine.h"
#include "worker/memory/cuda_page_lock.h"

namespace stemma::worker::cuda {
namespace {

std::unique_ptr<CopyEngine> MakeCopyEngine() {
  absl::StatusOr<std::unique_ptr<CudaCopyEngine>> engine = CudaCopyEngine::Create(c10::cuda::getCurrentCUDAStream());
  TORCH_CHECK(engine.ok(), engine.status().ToString());
  return *std::move(engine);
}

// The compute stream is one of LibTorch's pool, not the default one, which waits for other streams and is waited for.
void ComputeHere(at::Device device) {
  c10::cuda::set_device(device.index());
  c10::cuda::setCurrentCUDAStream(c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device.index()));
  // Sums of a split product would be rounded to bf16 before they are added up.
  at::globalContext().setAllowBF16ReductionCuBLAS(/*allow_reduced_precision=*/false);
}

Kernels AllKernels() {
  Kernels kernels = CudaRowKernels();
  kernels.add_weight_gradient = AddWeightGradient;
  kernels.logits = Logits;
  kernels.logits_backward = LogitsBackward;
  return kernels;
}

const AttentionKernels& BetweenCalls() {
  static const AttentionKernels kernels = CudaAttentionKernels();
  return kernels;
}

FlashAttentionOptions AttentionOptions() {
  FlashAttentionOptions options{.kernels = BetweenCalls()};
  options.num_multiprocessors = at::cuda::getCurrentDeviceProperties()->multiProcessorCount;
  options.send = Send;
  return options;
}

// The libraries are stateless, and outlive every op.
const FlashCalls& Fa2() {
  static const Fa2Calls calls;
  return calls;
}
const FlashCalls& BucketedCudnn() {
  static const CudnnCalls cudnn;
  static const BucketedCalls calls(cudnn);
  return calls;
}

std::vector<AttentionStrategy> FasterAttention(const BackendRequest& request) {
  if (!BucketedCudnn().Takes(request.run_dtype, request.head_size)) return {};
  auto [checked, in_use] =
      OptionsWithDense(AttentionOptions(), BucketedCudnn(),
                       {request.num_heads, request.num_kv_heads, request.head_size, request.run_dtype});
  return {{"attention_cudnn", std::make_shared<FlashAttention>(Fa2(), std::move(checked)),
           std::make_shared<FlashAttention>(Fa2(), std::move(in_use))}};
}

}  // namespace

Backend MakeCudaBackend(at::Device device, const BackendRequest& request) {
  ComputeHere(device);
  UseMemoryOf(device);
  return {.name = "cuda",
          .device = device,
          .kernels = AllKernels(),
          .attention = std::make_shared<FlashAttention>(Fa2(), AttentionOptions()),
          .faster_attention = FasterAttention(request),
          .attention_kernels = &BetweenCalls(),
          .memory_stats = CudaMemoryStats,
          .reset_peak_bytes = ResetCudaPeakBytes,
          .make_copy_engine = MakeCopyEngine,
          .make_page_lock = [] { return std::unique_ptr<PageLock>(std::make_unique<CudaPageLock>()); },
          .free_bytes = CudaFreeBytes,
          .send = Send,
          .start_read = StartRead,
          .make_clock = MakeStreamClock,
          .make_side_queue = MakeSideStream,
          .host_reads_are_free = false,
          .queries_by_token = true,
          .dlogits_in_run_dtype = true,
          .logits_row_quantum = kHeadVector,
          .slab_elements_with_masters = kGpuSlabElements};
}

}  // namespace stemma::worker::cuda
