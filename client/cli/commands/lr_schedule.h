// Learning-rate schedules of `replay`: a factor of the rate that each trace line carries. Pure.
//
// Request t of the trace, counted from 0: (t + 1) / warmup_steps for t < warmup_steps; after it, with
// p = (t - warmup) / (total - warmup), held at 1:
//   constant 1;  linear m + (1 - m)(1 - p);  cosine m + (1 - m)(1 + cos(pi p)) / 2;   m = min_lr_ratio
// The Python client's schedules are the same.
#pragma once

#include <cstdint>

#include "absl/status/status.h"

namespace stemma::cli {

enum class LrCurve { kConstant, kLinear, kCosine };

struct LrSchedule {
  LrCurve curve = LrCurve::kConstant;
  int64_t warmup_steps = 0;
  int64_t total_steps = 0;  // required by linear and cosine
  double min_lr_ratio = 0;

  absl::Status Validate() const;
  double Factor(int64_t t) const;
};

}  // namespace stemma::cli
