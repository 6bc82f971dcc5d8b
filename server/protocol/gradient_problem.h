// Why a step's gradient cannot be applied. Pure; called where a step is decided, and where its result says what was.
#pragma once

#include <string>

#include "stemma/internal/v1/worker.pb.h"
#include "stemma/v1/run_config.pb.h"
#include "stemma/v1/training.pb.h"

namespace stemma::server {

// Returns what is wrong with the gradient on which all ranks voted; "": nothing, or it is not the gradient's fault.
std::string GradientProblem(const v1::AdamParams& adam, const internal::v1::Vote& vote, const v1::RunConfig& run);

}  // namespace stemma::server
