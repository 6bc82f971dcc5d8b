// The CPU backend's table: from tensors to the typed loops of rowwise.h, lm_head.h and finite.h, the loss in plain
// loops, and products by LibTorch's GEMM. Private to worker/backend/cpu; tests compare its entries with composed ones.
#pragma once

#include "worker/backend/kernels.h"

namespace stemma::worker {

Kernels CpuKernels();

// worker/backend/cpu/{loss,products}.cc
void CpuLoss(const LossOperands& args);
void CpuAddWeightGradient(const WeightGradientOperands& args);
void CpuLogits(const LogitsOperands& args);
void CpuLogitsBackward(const LogitsBackwardOperands& args);

}  // namespace stemma::worker
