// What makes a step's loss independent of how it is computed: advantages from rewards, the denominator and
// the weights of each mini-batch, and which rollouts need to run at all (docs/losses.md). Pure. Called while a request
// is built and planned; the request was validated: names parse, arrays have their lengths, rewards are finite.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/admission/run_numbers.h"
#include "common/trace/loss_names.h"
#include "stemma/v1/training.pb.h"

namespace stemma {

// The name of the rewards that the group's rewards are held against: its uid, where it sends none.
const std::string& StatGroupOf(const v1::PromptGroup& group);

// Sets `advantage` of the rollouts that send none, from the rewards of those in one stat_group:
//   A = (reward - mean) / (std + 1e-6), std unbiased; without normalize_advantage_std A = reward - mean
//   one reward alone: mean 0, std 1; equal rewards: exactly 0
// Rollouts of the stat_group that have one sample_id count as one reward, and get one advantage; a sample_id has one
// reward in the whole request.
// Over the whole request, before it is cut into mini-batches. Nothing happens in a mode that reads no advantage.
// Errors: InvalidArgument - a rollout has neither advantage nor reward, two of one sample_id have different
// rewards, or the rewards of a stat_group are so large that their mean, their variance or an advantage
// overflows in the run's arithmetic; names the rollouts.
absl::Status FillAdvantages(const v1::LossConfig& loss, const RunNumbers& numbers,
                            std::vector<v1::PromptGroup>& groups);

struct StepNormalization {
  double denominator = 0;  // D; 0: the mini-batch has nothing to average over
  // w of the tokens of each rollout of the mini-batch, group by group; one entry where all have the same. 0 for a
  // rollout that has nothing to average over.
  std::vector<double> rollout_weights;
  int64_t num_loss_tokens = 0;  // unmasked
};

// Normalizes the steps of one request: what all of them ask of the whole request is counted once, before the first.
// Else a request of many small steps would cost its size once for each.
class StepNormalizer {
 public:
  // `loss` and `groups` outlive it.
  StepNormalizer(const v1::LossConfig& loss, const std::vector<v1::PromptGroup>& groups);

  // `mini_batch`: indices into the request's groups. Errors: FailedPrecondition UNSUPPORTED - a sample_id
  // (seq-mean-...) or a stat_group (prompt-mean) has members in another mini-batch too; names the first one.
  absl::StatusOr<StepNormalization> Normalize(std::span<const uint32_t> mini_batch) const;

 private:
  absl::Status CheckTogether(std::span<const uint32_t> mini_batch) const;

  const v1::LossConfig& loss_;
  const std::vector<v1::PromptGroup>& groups_;
  const absl::StatusOr<AggMode> mode_;
  // How many rollouts have a sample_id (seq-mean-...), or groups a stat_group (prompt-mean), by its name.
  absl::flat_hash_map<std::string, int64_t> members_;
};

// False where the rollout adds nothing to the loss: no unmasked token, or a policy term whose factor (advantage times
// rollout_is_weights, or loss_weights) is 0 on all of them, while neither KL nor entropy is asked for. A coefficient of
// 0 asks for its metric, over every token. Advantages are filled.
bool HasLoss(const v1::LossConfig& loss, const v1::Rollout& rollout);

// Whether the rollout is computed: it has a loss, or its log-probs are to be returned.
bool RolloutRuns(const v1::UpdateHeader& header, const v1::Rollout& rollout);

}  // namespace stemma
