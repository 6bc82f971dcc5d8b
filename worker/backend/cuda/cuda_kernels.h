// The CUDA backend's fused kernels: from tensors to launches on the current stream (worker/backend/cuda/kernels).
//
// Called by worker/backend/cuda, which makes the backend's table of them, and by tests. A run in fp64 has composed
// kernels, here and in AttentionKernels. No entry waits for the device. Sums over rows are the same
// bits from call to call on one kind of device.
#pragma once

#include "worker/backend/cuda/attention/attention_kernels.h"
#include "worker/backend/kernels.h"

namespace stemma::worker::cuda {

// Fused kernels of rows; products (add_weight_gradient, logits, logits_backward) are the composed ones.
Kernels CudaRowKernels();

AttentionKernels CudaAttentionKernels();

// worker/backend/cuda/{cuda_head,cuda_loss}.cc
void CudaHeadForward(const HeadForwardOperands& args);
void CudaHeadBackward(const HeadBackwardOperands& args);
void CudaLoss(const LossOperands& args);

}  // namespace stemma::worker::cuda
