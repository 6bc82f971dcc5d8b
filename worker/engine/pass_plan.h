// Whether a pass can run as its plan says, before its first operation. Called by the pass runner.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "common/model/model_config.h"
#include "worker/engine/payload.h"
#include "worker/loss/loss_plan.h"
#include "worker/schedule/program.h"
#include "worker/schedule/wave_rows.h"

namespace stemma::worker {

// Checks what all ranks of a copy have to find together: with context-parallel ranks every wave, whoever runs it, since
// the others would wait for a rank that alone found one wrong. `loss` null: a forward-only pass. `sharded`: parameters
// are. Errors: InvalidArgument - a step of a model with experts does not say how many rollouts a prefix has; as of
// CheckParameterSweeps, CheckContextRanks, CheckSplitGroups, WaveRows, CheckCutRows, CheckEntryLogProbs and
// CheckMemberTokens.
absl::Status CheckPassPlan(const v1::StepPlan& plan, const Payload& payload, const RankSizes& sizes,
                           const LossPlan* loss, const ModelConfig& model, bool sharded);

// Checks that the log-probs that the loss reads of the pass before the step are here: a plan may run a rollout on
// another rank than the pass did. Errors: InvalidArgument.
absl::Status CheckEntryLogProbs(const Payload& payload, const std::vector<MemberRows>& members, const LossPlan* loss);

}  // namespace stemma::worker
