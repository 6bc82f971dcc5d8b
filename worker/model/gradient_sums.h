// The gradients of all units of sharded parameters at once: where a step adds them up and reduces each unit's in its
// last sweep (ReduceOnce of common/cost/parameter_units.h). Invariant: while it lives, what is added to a parameter's
// gradient lands here, and afterwards in its slot again.
//
// Used by worker/model/sharded_units.h; engine thread only.
#pragma once

#include <vector>

#include "worker/model/weights.h"

namespace stemma::worker {

class GradientSums {
 public:
  // Makes them zeros. `weights` outlives it. REQUIRES: they are sharded and trained. Throws what an allocation throws,
  // and leaves the slots in place then.
  explicit GradientSums(Weights& weights);
  ~GradientSums();
  GradientSums(const GradientSums&) = delete;
  GradientSums& operator=(const GradientSums&) = delete;

 private:
  Weights& weights_;
  std::vector<at::Tensor> slots_;  // of each unit
};

}  // namespace stemma::worker
