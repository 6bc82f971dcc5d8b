// The elementwise work between the calls of a split attention; shared by its strategies.
//
// Filled by fused kernels (worker/backend/cuda/cuda_kernels.h) or, on any device, by plain ATen ops
// (composed_attention_kernels.h). What is written shares no memory with what is read. Letters as in
// worker/backend/attention.h.
#pragma once

#include <ATen/core/Tensor.h>

namespace stemma::worker::cuda {

// Joins the attention of the same queries to two disjoint sets of keys, a and b, in Acc:
//   o = o_b + σ(l_a - l_b) (o_a - o_b),  l = l_b + softplus(l_a - l_b)
struct MergeOperands {
  const at::Tensor &a_THE, &b_THE;        // run dtype; any strides, last dim contiguous
  const at::Tensor &lse_a_HT, &lse_b_HT;  // Acc; any strides
  const at::Tensor& o_THE;                // written; run dtype; any strides, last dim contiguous
  const at::Tensor& lse_HT;               // written; Acc; any strides
};

// Adds to the gradients of K or V what a call's parts say: sum += Σ_n parts[n], summed in Acc.
struct AddPartsOperands {
  const at::Tensor& parts_NCKE;  // run dtype; any strides, last dim contiguous
  const at::Tensor& sum_CKE;     // Acc; any strides, last dim contiguous
};

struct AttentionKernels {
  void (*merge)(const MergeOperands&);
  void (*add_parts)(const AddPartsOperands&);
};

}  // namespace stemma::worker::cuda
