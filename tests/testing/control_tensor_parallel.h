// Tensor-parallel ranks with one known mistake, by name, for the probe: a comparison that the right ranks pass must
// fail on them.
//
//   residual_of_every_rank   a residual is added by every rank before the sum
//   rows_of_others           gathered rows stand in the places of another rank's
//   row_sums_of_others       a rank gets another rank's rows of a sum
//   own_vocabulary           log-probs are those of the rank's own part of the vocabulary
#pragma once

#include <memory>
#include <string>

#include "tests/testing/namespaces.h"
#include "worker/ops/tensor_parallel.h"

namespace stemma::testing {

// Null: unknown name.
std::unique_ptr<TensorParallel> MakeControlTensorParallel(const std::string& name, Communicator& tp);

}  // namespace stemma::testing
