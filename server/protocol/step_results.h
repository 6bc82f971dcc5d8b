// What is said of an optimizer step that is over, to its client and in the journal.
#pragma once

#include <optional>

#include "server/protocol/coordinator_parts.h"

namespace stemma::server {

// Returns the result of the record's step k, which runs or needs no rank. `apply_s`: of the slowest rank; absent where
// no rank was asked.
v1::StepResult ResultOf(const CoordinatorParts& parts, const UpdateRecord& record, v1::StepResult::Outcome outcome,
                        std::optional<double> apply_s);

}  // namespace stemma::server
