// The dtype that a run keeps statistics, sums and gradients in.
#pragma once

#include <ATen/core/Tensor.h>

namespace stemma::worker {

// fp32 for a run in fp32 or bf16, fp64 for one in fp64.
inline at::ScalarType AccType(at::ScalarType run_dtype) { return run_dtype == at::kDouble ? at::kDouble : at::kFloat; }

// Log-probs, what a loss reads and writes of each row, and sums over rows: fp64 in every run. They are a few numbers a
// row, and ratios of log-probs lose in fp32 what the logits still had.
inline constexpr at::ScalarType kRowType = at::kDouble;

}  // namespace stemma::worker
