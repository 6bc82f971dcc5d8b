// Products with operands in bf16 and sums in fp32, by cuBLAS. Entries of the kernel table (worker/backend/kernels.h).
//
// LibTorch's own products round their result to the operands' dtype; cuBLAS writes and adds to fp32 in the product
// itself, so that weight gradients and logits cost no pass of their own. Other dtypes, and operands without a row or
// with columns that lie apart, go to the composed entries.
#pragma once

#include "worker/backend/kernels.h"

namespace stemma::worker::cuda {

void AddWeightGradient(const WeightGradientOperands& args);
void Logits(const LogitsOperands& args);
void LogitsBackward(const LogitsBackwardOperands& args);

}  // namespace stemma::worker::cuda
