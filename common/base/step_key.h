// The key of one attempt of one step, which server and workers exchange: when two are the same, and how one reads.
#pragma once

#include <string>

#include "stemma/internal/v1/worker.pb.h"

namespace stemma {

// Compares every field: an earlier attempt, another incarnation or generation is another key.
bool SameStepKey(const internal::v1::StepKey& a, const internal::v1::StepKey& b);

// "epoch 1 incarnation w1 generation 2 step 3 attempt 1 request r k 0": equal for the same keys only.
std::string StepKeyText(const internal::v1::StepKey& key);

}  // namespace stemma
