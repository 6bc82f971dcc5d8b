// Names of the loss modes, KL estimators and aggregation modes of the public API, and what each loss mode reads: the
// one table behind the server's validation, GetServerInfo, the worker's losses and docs/losses.md. Torch-free, pure.
#pragma once

#include <span>
#include <string_view>

#include "absl/status/statusor.h"

namespace stemma {

enum class LossMode { kVanilla, kGspo, kCispo, kImportanceSampling, kCrossEntropy, kGpg };
enum class KlType { kNone, kK1, kAbs, kK2, kK3 };
enum class AggMode { kTokenMean, kTokenSum, kSeqMeanTokenSum, kSeqMeanTokenSumNorm, kSeqMeanTokenMean, kPromptMean };

// A field that a mode needs and lacks is an error, and so is one that it never reads.
struct LossModeRequirements {
  bool needs_clip = false;                // clip_ratio_low and clip_ratio_high
  bool reads_clip_c = false;              // clip_ratio_c, optional
  bool needs_old = false;                 // UpdateHeader.old
  bool needs_advantage = false;           // an advantage, or a reward to make one from; the loss is a multiple of it
  bool needs_loss_weights = false;        // loss_weights
  bool reads_importance_weights = false;  // rollout_is_weights, optional
  bool needs_whole_rollouts = false;      // a token's gradient depends on the whole response
};

LossModeRequirements RequirementsOf(LossMode mode);
bool NeedsWholeRollouts(LossMode mode);
bool NeedsOldLogProbs(LossMode mode);
bool NeedsAdvantages(LossMode mode);

// Errors: InvalidArgument - the name is unknown; the message lists those that are known.
absl::StatusOr<LossMode> ParseLossMode(std::string_view name);
absl::StatusOr<AggMode> ParseAggMode(std::string_view name);

// A trailing `+` keeps the value and takes the gradient of k2.
struct KlName {
  KlType type = KlType::kNone;
  bool straight_through = false;
};
absl::StatusOr<KlName> ParseKlType(std::string_view name);

// Every accepted spelling, for GetServerInfo. KL: each also with a trailing `+`, listed too.
std::span<const std::string_view> LossModeNames();
std::span<const std::string_view> AggModeNames();
std::span<const std::string_view> KlTypeNames();

}  // namespace stemma
