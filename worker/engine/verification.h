// Computes a step's gradient by two plans, and says how far they are apart: what a rank does for VerifyGroup. Called by
// ModelEngine on the engine thread.
//
// Every rank of the mesh walks the same collectives: those of a step; an agreement on whether each has voted for the
// first one and kept its gradients; those of the second step.
#pragma once

#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "stemma/internal/v1/worker.pb.h"
#include "worker/engine/engine.h"
#include "worker/optim/parameter.h"
#include "worker/optim/ranges.h"

namespace stemma::worker {

struct VerificationRank {
  const std::vector<Parameter>& parameters;
  const ParameterRanges& counted;  // of all their elements, those that this rank counts
  // Computes the gradient of a step, and votes, as the engine's Prepare.
  std::function<absl::StatusOr<internal::v1::Vote>(const internal::v1::Prepare& prepare, const EngineHooks& hooks)> run;
  // Whether all ranks of the mesh can.
  std::function<absl::StatusOr<bool>(bool this_one)> all_can;
};

// Errors: Unavailable - another rank is gone.
absl::StatusOr<internal::v1::VerifyDone> RunVerification(const internal::v1::Verify& verify, const EngineHooks& hooks,
                                                         const VerificationRank& rank);

}  // namespace stemma::worker
