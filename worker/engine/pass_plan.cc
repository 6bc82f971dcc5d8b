#include "worker/engine/pass_plan.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "worker/engine/wave_input.h"
#include "worker/schedule/context_ranks.h"
#include "worker/schedule/parameter_sweeps.h"
#include "worker/schedule/split_groups.h"
#include "worker/schedule/stage_orders.h"

namespace stemma::worker {
namespace {

absl::Status CheckPrefixRollouts(const v1::StepPlan& plan) {
  for (int c = 0; c < plan.clusters_size(); ++c) {
    const v1::Cluster& cluster = plan.clusters(c);
    if (cluster.prefix_rollouts_size() == cluster.prefix_groups_size()) continue;
    return absl::InvalidArgumentError(absl::StrCat("cluster ", c, ": prefix_rollouts has ",
                                                   cluster.prefix_rollouts_size(), " numbers, prefix_groups ",
                                                   cluster.prefix_groups_size()));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckPassPlan(const v1::StepPlan& plan, const Payload& payload, const RankSizes& sizes,
                           const LossPlan* loss, const ModelConfig& model, bool sharded) {
  RETURN_IF_ERROR(CheckParameterSweeps(plan, sizes, sharded));
  RETURN_IF_ERROR(CheckContextRanks(plan, sizes));
  RETURN_IF_ERROR(CheckSplitGroups(plan, sizes));
  RETURN_IF_ERROR(CheckStageOrders(plan, /*forward_only=*/loss == nullptr, sizes));
  if (loss != nullptr && model.experts) RETURN_IF_ERROR(CheckPrefixRollouts(plan));
  if (sizes.cp_ranks == 1 && sizes.stages == 1 && !sharded) return absl::OkStatus();
  const bool has_head = sizes.stage == sizes.stages - 1;
  for (const v1::Cluster& cluster : plan.clusters()) {
    for (const v1::Wave& wave : cluster.waves()) {
      ASSIGN_OR_RETURN(const std::vector<MemberRows> members, WaveRows(payload.shapes, cluster, wave));
      if (wave.cut_rows()) RETURN_IF_ERROR(CheckCutRows(members, sizes.cp_ranks));
      if (has_head) RETURN_IF_ERROR(CheckEntryLogProbs(payload, members, loss));
      RETURN_IF_ERROR(CheckMemberTokens(payload, members, model.vocab_size));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckEntryLogProbs(const Payload& payload, const std::vector<MemberRows>& members, const LossPlan* loss) {
  if (loss == nullptr) return absl::OkStatus();
  for (const std::string& weights : {loss->old_weights, loss->ref_weights}) {
    if (weights.empty()) continue;
    for (const MemberRows& m : members) {
      const auto rows = static_cast<size_t>(payload.shapes[m.group].response_tokens[m.rollout]);
      const std::vector<double>* computed = payload.FindEntryLogProbs(weights, m.group, m.rollout);
      if (computed != nullptr && computed->size() == rows) continue;
      return absl::InvalidArgumentError(absl::StrCat("the plan runs group ", m.group, " rollout ", m.rollout,
                                                     ", whose log-probs under ", weights, " this rank does not have"));
    }
  }
  return absl::OkStatus();
}

}  // namespace stemma::worker
