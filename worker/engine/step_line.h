// What a worker logs of a step: one line, one for each of its operations that took far longer than predicted, and one
// where offload found too little host memory. Pure; called by the engine.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "stemma/internal/v1/worker.pb.h"
#include "worker/engine/pass_sums.h"

namespace stemma::worker {

// "step 3 of request r (k 0, attempt 1): prefix forward 12 ms, 4 waves 1.20 s, prefix backward 25 ms; 1200 of 4800 rows
// computed; peak 12.0 MiB above the state". With offload also the bytes copied. Without rows where another rank counts
// them: one rank of each model copy (with cp, of each part of its rows) does.
std::string StepLine(const internal::v1::StepKey& key, const PassSums& sums);

// Returns "", or the warning that part of an offloaded tape stayed on the device, which the plan does not count on.
std::string KeptLine(const internal::v1::StepKey& key, const PassSums& sums);

// An operation is slow from this multiple of its prediction on: predictions of a calibrated server are right within
// tens of percent, and those of an uncalibrated one within a few times.
inline constexpr double kSlowMultiple = 10;
// What is shorter is never slow: in a small model's step, thread wake-ups and cold caches take many times longer than
// the arithmetic that the plan predicts.
inline constexpr double kSlowFloorSeconds = 1;

// Returns "", or the warning that `operation` ("suffix waves", "APPLY") of this step was slow. A prediction of 0 is
// none.
std::string SlowLine(const internal::v1::StepKey& key, std::string_view operation, double seconds, double predicted_s);

// Returns the warnings of the phases that were slow.
std::vector<std::string> SlowPhases(const internal::v1::StepKey& key, const PassSums& sums,
                                    const v1::PhaseSeconds& predicted);

}  // namespace stemma::worker
