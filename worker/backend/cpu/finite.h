// Tells whether all numbers of an array are finite: one read, split over LibTorch's threads. The CPU backend's
// entry for what a step computes; called by worker/model on what was read from files.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace stemma::worker::kernels {

// `values`: contiguous, fp32, fp64 or bf16.
bool AllFinite(const at::Tensor& values);

// The first element that is not finite, counted from 0; -1: all are. Reads the array twice at most.
int64_t FirstNonfinite(const at::Tensor& values);

}  // namespace stemma::worker::kernels
