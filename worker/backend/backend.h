// What one kind of device brings to the engine: attention, fused kernels, mixed-precision products, memory statistics.
//
// Chosen once per process by its device and carried in LayerContext; ops, model and engine never ask which it is.
// Backends: cpu (worker/backend/cpu/cpu_backend.h), composed of plain ATen ops for any device
// (worker/backend/composed/composed_backend.h): the reference of every fused kernel.
#pragma once

#include <c10/core/Device.h>

#include <memory>
#include <string>

#include "worker/backend/attention.h"
#include "worker/backend/kernels.h"
#include "worker/memory/copy_engine.h"
#include "worker/memory/memory_stats.h"

namespace stemma::worker {

struct Backend {
  std::string name;
  at::Device device;
  Kernels kernels;
  std::shared_ptr<const AttentionOp> attention;
  // What the device's allocator has given out.
  MemoryStats (*memory_stats)();
  void (*reset_peak_bytes)();
  // Copies between this device and host memory.
  std::unique_ptr<CopyEngine> (*make_copy_engine)();
  // Whether numbers of a tensor can be looked at without waiting for a device.
  bool host_reads_are_free = false;

  at::TensorOptions options(at::ScalarType dtype) const { return at::TensorOptions().dtype(dtype).device(device); }
};

}  // namespace stemma::worker
