// AdamW on fp32 (fp64) masters by ATen's fused op, the gradient norm, and the clip. Called by worker/engine.
//
// Gradients, masters and moments have one dtype: fp32, or fp64 in an fp64 run. A bf16 weight is a copy of its master.
// States (moments, and masters that are not the weights themselves) live on the device or in host memory; from there
// AdamwStep streams them through the device in slabs, with the same bits.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "stemma/v1/training.pb.h"

namespace stemma {

struct Parameter {
  std::string name;                // ours: fused tensors have one name ("layers.0.qkv.weight")
  at::Tensor weight;               // run dtype
  at::Tensor master;               // fp32 / fp64; the same tensor as weight unless the run is bf16
  at::Tensor grad;                 // like master
  at::Tensor exp_avg, exp_avg_sq;  // like master; made by MakeMoments or MoveStatesToHost
  bool states_on_host = false;
  bool is_matrix() const { return weight.dim() >= 2; }
};

// Sum of squares over all gradients, in fp64, in parameter order.
double GradNormSquared(const std::vector<Parameter>& parameters);

// Name of the first parameter whose gradient holds a non-finite number; empty: none.
std::string FirstNonfinite(const std::vector<Parameter>& parameters);

void ZeroGradients(std::vector<Parameter>& parameters);

// optimizer_residency: device. Makes the moments, zero: before the first step, so that no Apply can want for memory.
void MakeMoments(std::vector<Parameter>& parameters);

// optimizer_residency: host. Moves masters and makes the moments there, in one arena that lives as long as they do.
// Errors: ResourceExhausted - the host does not give that much.
absl::Status MoveStatesToHost(std::vector<Parameter>& parameters);

// Elements of a parameter whose host states are on the device at a time.
constexpr int64_t kStateSlabElements = int64_t{1} << 22;

// grad *= clip, then AdamW with bias correction for `step` (1 = first).
void AdamwStep(std::vector<Parameter>& parameters, const v1::AdamParams& adam, double clip, int64_t step,
               int64_t slab_elements = kStateSlabElements);

}  // namespace stemma
