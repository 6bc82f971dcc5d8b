#include "server/protocol/step_prepares.h"

#include <cstdint>
#include <utility>

#include "common/base/mesh.h"
#include "server/protocol/checkpoint_rules.h"
#include "server/protocol/rank_parts.h"
#include "server/protocol/step_messages.h"

namespace stemma::server {

std::vector<internal::v1::Prepare> PreparesOf(const CoordinatorParts& parts, const internal::v1::StepKey& key,
                                              const TrainingRequest& request, const RequestPlan& plan) {
  std::vector<int64_t> num_rollouts;
  for (const v1::PromptGroup& group : request.groups) num_rollouts.push_back(group.rollouts_size());
  internal::v1::Prepare whole = MakePrepare(key, request.update, plan);
  for (internal::v1::PassWeights& weights : *whole.mutable_pass_weights()) {
    weights = PassWeightsOf(parts.history.state(), weights.name(), parts.gang.config().dtype());
  }
  const v1::Mesh& mesh = parts.gang.mesh();
  return ForRanks(PreparesOfRanks(std::move(whole), DpSize(mesh), num_rollouts), mesh);
}

}  // namespace stemma::server
