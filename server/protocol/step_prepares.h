// What the ranks are sent to compute one step, of an update or of a verification. Pure.
#pragma once

#include <vector>

#include "server/protocol/coordinator_parts.h"

namespace stemma::server {

// Returns what each rank is sent of the request's step key.k(). Each rank's own keys, and how much it records, are the
// caller's.
std::vector<internal::v1::Prepare> PreparesOf(const CoordinatorParts& parts, const internal::v1::StepKey& key,
                                              const TrainingRequest& request, const RequestPlan& plan);

}  // namespace stemma::server
