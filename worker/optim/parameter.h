// Parameter: a weight and what its update needs. Owned by worker/model's Weights, stepped by worker/optim.
//
// Gradients, masters and moments have one dtype: fp32, or fp64 in an fp64 run. A bf16 weight is a copy of its master.
// States (moments, and masters that are not the weights themselves) live on the device or in host memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace stemma::worker {

struct Parameter {
  std::string name;                // ours: fused tensors have one name ("layers.0.qkv.weight")
  at::Tensor weight;               // run dtype
  at::Tensor master;               // fp32 / fp64; the same tensor as weight unless the run is bf16: then by MakeStates
  at::Tensor grad;                 // like master
  at::Tensor exp_avg, exp_avg_sq;  // like master; by MakeStates
  bool states_on_host = false;
  bool is_matrix() const { return weight.dim() >= 2; }
  bool master_is_weight() const { return weight.is_same(master); }
};

}  // namespace stemma::worker
