// The gradients of one run of a step, held on the device until those of another run are there to be compared with them
// (VerifyGroup). Used by worker/engine, on the engine thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "stemma/internal/v1/worker.pb.h"
#include "worker/optim/parameter.h"
#include "worker/optim/ranges.h"

namespace stemma::worker {

class KeptGradients {
 public:
  // Copies the gradients of these ranges, as many bytes as they have (KeptGradientBytes, common/cost/state_bytes.h).
  // Throws where the device has no room.
  KeptGradients(const std::vector<Parameter>& parameters, const ParameterRanges& ranges);

  // Returns for each parameter of the ranges, in their order, the sums of squares over its elements in them: of what
  // was kept less what its gradient is now, and of what it is now; in fp64. REQUIRES: the same parameters.
  std::vector<internal::v1::GradientError> Compare(const std::vector<Parameter>& parameters) const;

 private:
  const ParameterRanges ranges_;
  at::Tensor kept_;  // flat, range after range
};

}  // namespace stemma::worker
