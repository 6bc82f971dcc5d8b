// What a PREPARE asks of the loss, read once. Free of LibTorch's ops; called by worker/engine.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "stemma/internal/v1/worker.pb.h"
#include "worker/backend/kernels.h"

namespace stemma::worker {

struct LossPlan {
  LossOptions options;
  double temperature = 1;
  v1::LogProbSource::From old_from = v1::LogProbSource::FROM_UNSPECIFIED;
  v1::LogProbSource::From ref_from = v1::LogProbSource::FROM_UNSPECIFIED;
  std::string old_weights = {}, ref_weights = {};  // by their name; empty: not from WEIGHTS
  // w / D of each rollout's unmasked tokens, by group index of the payload and rollout; empty for groups that are not
  // in the plan.
  std::vector<std::vector<double>> weights;
};

// `rollouts`: how many each group of the payload has. Errors: InvalidArgument - the plan names a group that is not in
// the payload, the weights are not one per rollout of its groups, or a name is unknown.
absl::StatusOr<LossPlan> MakeLossPlan(const internal::v1::Prepare& prepare, const std::vector<int64_t>& rollouts);

}  // namespace stemma::worker
