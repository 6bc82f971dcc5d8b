// What one kind of device brings to the engine: attention, fused kernels, mixed-precision products, memory statistics.
//
// Chosen once per process by its device and carried in LayerContext; ops, model and engine never ask which it is.
// Backends: cpu (worker/backend/cpu/cpu_backend.h); composed of plain ATen ops for any device
// (worker/backend/composed/composed_backend.h), the reference of every fused kernel; cuda, in a library of its own that
// the worker loads where --device says so (worker/backend/cuda/cuda_backend.h).
#pragma once

#include <c10/core/Device.h>

#include <memory>
#include <string>
#include <vector>

#include "common/base/system_memory.h"
#include "common/cost/state_slabs.h"
#include "worker/backend/attention.h"
#include "worker/backend/device_clock.h"
#include "worker/backend/host_transfer.h"
#include "worker/backend/kernels.h"
#include "worker/backend/side_queue.h"
#include "worker/memory/copy_engine.h"
#include "worker/memory/memory_stats.h"
#include "worker/memory/page_lock.h"

namespace stemma::worker {

namespace cuda {
struct AttentionKernels;
}

// An entry of the table that the start-up self-check refused (worker/backend/self_check/self_check.h); the composed one
// runs in its place.
struct KernelOff {
  std::string kernel;  // its name in docs/gpu.md
  std::string reason;  // what the check saw
};

// A way to compute attention that is faster where it is right, for the shapes that it takes.
struct AttentionStrategy {
  std::string name;  // in docs/gpu.md
  std::shared_ptr<const AttentionOp> op;
  // What a run has where `op` is admitted: the same kernels, on the calls that are worth them. Null: `op` itself.
  std::shared_ptr<const AttentionOp> in_use = nullptr;
};

struct Backend {
  std::string name;
  at::Device device;
  Kernels kernels;
  std::shared_ptr<const AttentionOp> attention;
  // Best first. The first that the self-check admits takes the place of `attention`; without a check none does.
  std::vector<AttentionStrategy> faster_attention = {};
  std::vector<KernelOff> kernels_off = {};
  // What `attention` does between its calls, where that is a split attention's; null: it is none. Read by benches.
  const cuda::AttentionKernels* attention_kernels = nullptr;
  // What the device's allocator has given out.
  MemoryStats (*memory_stats)();
  void (*reset_peak_bytes)();
  // Copies between this device and host memory.
  std::unique_ptr<CopyEngine> (*make_copy_engine)();
  // What host memory needs before copies reach it; null: nothing.
  std::unique_ptr<PageLock> (*make_page_lock)() = nullptr;
  // Device memory that no one holds: the budget of a run that is given none.
  int64_t (*free_bytes)() = AvailableMemoryBytes;
  // Small tensors to the device, and numbers back from it, without holding up the thread that computes.
  at::Tensor (*send)(const at::Tensor& host, at::Device device) = SendBlocking;
  std::unique_ptr<HostRead> (*start_read)(const at::Tensor& device) = StartBlockingRead;
  // When the device reached points of its queue of work.
  std::unique_ptr<DeviceClock> (*make_clock)() = MakeHostClock;
  // A queue of work beside the computation's; null: there is none.
  std::unique_ptr<SideQueue> (*make_side_queue)() = [] { return std::unique_ptr<SideQueue>(); };
  // Whether numbers of a tensor can be looked at without waiting for a device.
  bool host_reads_are_free = false;
  // Whether the heads of a token lie together in memory, so that [H, T, E] queries are a view of [T, H, E] ones.
  bool queries_by_token = false;
  // Whether gradients of logits are in the run dtype, in the memory of the logits; else they replace the logits.
  bool dlogits_in_run_dtype = false;
  // From one row of logits to the next is a multiple of so many elements, whatever the vocabulary: where products and
  // kernels are slow on rows that begin at no boundary. What lies between two rows is never read.
  int64_t logits_row_quantum = 1;
  // Elements of a slab of optimizer states that lie on the device, in a run with masters apart.
  int64_t slab_elements_with_masters = StateSlabElements(/*has_masters=*/true);

  at::TensorOptions options(at::ScalarType dtype) const { return at::TensorOptions().dtype(dtype).device(device); }
};

}  // namespace stemma::worker
