// Why a step's gradient cannot be applied, or is not there. Pure; called where votes are decided on, and where a step's
// result says what was.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "stemma/internal/v1/worker.pb.h"
#include "stemma/v1/run_config.pb.h"
#include "stemma/v1/training.pb.h"

namespace stemma::server {

// Returns what is wrong with the gradient on which all ranks voted; "": nothing, or it is not the gradient's fault.
std::string GradientProblem(const v1::AdamParams& adam, const internal::v1::Vote& vote, const v1::RunConfig& run);

// Returns what the client is told where ranks could not compute. REQUIRES: a no vote that is not the gradient's fault.
absl::Status NoVoteError(const internal::v1::Vote& vote);

}  // namespace stemma::server
