// Adds what the backward of a call over ancestors' keys gives to their gradients. Used by FlashAttention.
#pragma once

#include "worker/backend/cuda/attention/attention_kernels.h"
#include "worker/backend/cuda/attention/wave_calls.h"

namespace stemma::worker::cuda {

// Adds dk, dv [parts, C, K, E], summed over the parts, to gk, gv of the call's ancestors. Dies where an ancestor has
// none.
void AddToAncestors(const AttentionKernels& kernels, const AncestorCall& call, const at::Tensor& dk,
                    const at::Tensor& dv);

}  // namespace stemma::worker::cuda
