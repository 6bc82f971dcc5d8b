// AdamW on fp32 (fp64) masters by ATen's fused op, the gradient norm, and the clip. Called by worker/engine.
//
// Gradients, masters and moments have one dtype: fp32, or fp64 in an fp64 run. A bf16 weight is a copy of its master.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "stemma/v1/training.pb.h"

namespace stemma {

struct Parameter {
  std::string name;                // ours: fused tensors have one name ("layers.0.qkv.weight")
  at::Tensor weight;               // run dtype
  at::Tensor master;               // fp32 / fp64; the same tensor as weight unless the run is bf16
  at::Tensor grad;                 // like master
  at::Tensor exp_avg, exp_avg_sq;  // like master; undefined before the first Apply
  bool is_matrix() const { return weight.dim() >= 2; }
};

// Sum of squares over all gradients, in fp64, in parameter order.
double GradNormSquared(const std::vector<Parameter>& parameters);

// Name of the first parameter whose gradient holds a non-finite number; empty: none.
std::string FirstNonfinite(const std::vector<Parameter>& parameters);

void ZeroGradients(std::vector<Parameter>& parameters);

// grad *= clip, then AdamW with bias correction for `step` (1 = first).
void AdamwStep(std::vector<Parameter>& parameters, const v1::AdamParams& adam, double clip, int64_t step);

}  // namespace stemma
