// What a worker logs of a step: one line. Pure; called by the engine.
#pragma once

#include <string>

#include "stemma/internal/v1/worker.pb.h"
#include "worker/engine/pass_runner.h"

namespace stemma::worker {

// "step 3 of request r (k 0, attempt 1): prefix forward 12 ms, 4 waves 1.20 s, prefix backward 25 ms; 1200 of 4800 rows
// computed; peak 12.0 MiB above the state". With offload also the bytes copied.
std::string StepLine(const internal::v1::StepKey& key, const PassSums& sums);

}  // namespace stemma::worker
