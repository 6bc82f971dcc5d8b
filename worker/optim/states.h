// Where the optimizer's states are made: masters and moments, on the device or in host memory from the first byte on,
// so that loading never needs room for both. Called by worker/model before weights are read.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "stemma/v1/run_config.pb.h"
#include "worker/memory/page_lock.h"
#include "worker/optim/parameter.h"
#include "worker/optim/ranges.h"

namespace stemma::worker {

// Makes the states of these elements, at most one range of a parameter: moments, zero, and masters of weights of
// another dtype, uninitialised; a master that is the weight stays. HOST: in one arena that lives as long as they do,
// locked by `page_lock` where copies to the device need it; null: it is not locked.
// Errors: ResourceExhausted - the host does not give that much.
absl::Status MakeStates(std::vector<Parameter>& parameters, v1::OptimizerResidency residency,
                        const ParameterRanges& owned, PageLock* page_lock = nullptr);

}  // namespace stemma::worker
