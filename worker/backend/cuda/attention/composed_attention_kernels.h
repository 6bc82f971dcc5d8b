// The work between the calls of a split attention in plain ATen ops, on any device and in any dtype.
//
// The reference that fused kernels are tested against, and what runs where one is not admitted. Makes temporaries in
// Acc that fused kernels do not.
#pragma once

#include "worker/backend/cuda/attention/attention_kernels.h"

namespace stemma::worker::cuda {

AttentionKernels ComposedAttentionKernels();

}  // namespace stemma::worker::cuda
