// The backend of a CUDA device: fused kernels, cuBLAS, flash attention, page-locked copies. In the library that
// worker/engine/open_device.h loads; a process computes on one device, by one thread.
//
// bf16 is what it is made for. Runs in fp32 use LibTorch's products and composed attention, runs in fp64 composed
// kernels, too: they are there for tests.
#pragma once

#include <c10/core/Device.h>

#include "worker/backend/device.h"

namespace stemma::worker::cuda {

// Makes the calling thread the one that computes: its current device and stream are set for good.
Backend MakeCudaBackend(at::Device device, const BackendRequest& request);

}  // namespace stemma::worker::cuda
