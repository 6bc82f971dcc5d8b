#include "common/trace/loss_names.h"

#include <array>
#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "glog/logging.h"

namespace stemma {
namespace {

// In the order of the enums.
constexpr std::array<std::string_view, 6> kLossModes = {"vanilla",       "gspo", "cispo", "importance_sampling",
                                                        "cross_entropy", "gpg"};
constexpr std::array<std::string_view, 6> kAggModes = {
    "token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-sum-norm", "seq-mean-token-mean", "prompt-mean",
};

constexpr std::array<std::string_view, 14> kKlTypes = {
    "kl", "kl+", "k1", "k1+", "abs", "abs+", "mse", "mse+", "k2", "k2+", "low_var_kl", "low_var_kl+", "k3", "k3+"};
// By base name, a pair for each line of kKlTypes.
constexpr std::array<KlType, 7> kKlTypeOfBase = {KlType::kK1, KlType::kK1, KlType::kAbs, KlType::kK2,
                                                 KlType::kK2, KlType::kK3, KlType::kK3};

template <size_t kCount>
absl::StatusOr<size_t> IndexOf(std::string_view name, const std::array<std::string_view, kCount>& names) {
  std::string known;
  for (size_t index = 0; index < kCount; ++index) {
    if (names[index] == name) return index;
    known.append(known.empty() ? "" : ", ").append(names[index]);
  }
  return absl::InvalidArgumentError(absl::StrCat("is \"", absl::CEscape(std::string(name.substr(0, 40))),
                                                 name.size() > 40 ? "..." : "", "\", must be one of: ", known));
}

}  // namespace

LossModeRequirements RequirementsOf(LossMode mode) {
  switch (mode) {
    case LossMode::kVanilla:
      return {.needs_clip = true,
              .reads_clip_c = true,
              .needs_old = true,
              .needs_advantage = true,
              .reads_importance_weights = true};
    case LossMode::kGspo:
      return {.needs_clip = true,
              .needs_old = true,
              .needs_advantage = true,
              .reads_importance_weights = true,
              .needs_whole_rollouts = true};
    case LossMode::kCispo:
      return {.needs_clip = true, .needs_old = true, .needs_advantage = true, .reads_importance_weights = true};
    case LossMode::kImportanceSampling:
      return {.needs_old = true, .needs_advantage = true, .reads_importance_weights = true};
    case LossMode::kCrossEntropy:
      return {.needs_loss_weights = true};
    case LossMode::kGpg:
      return {.needs_advantage = true, .reads_importance_weights = true};
  }
  LOG(FATAL) << "loss mode " << static_cast<int>(mode);
}

bool NeedsWholeRollouts(LossMode mode) { return RequirementsOf(mode).needs_whole_rollouts; }
bool NeedsOldLogProbs(LossMode mode) { return RequirementsOf(mode).needs_old; }
bool NeedsAdvantages(LossMode mode) { return RequirementsOf(mode).needs_advantage; }

absl::StatusOr<LossMode> ParseLossMode(std::string_view name) {
  absl::StatusOr<size_t> index = IndexOf(name, kLossModes);
  if (!index.ok()) return index.status();
  return static_cast<LossMode>(*index);
}

absl::StatusOr<AggMode> ParseAggMode(std::string_view name) {
  absl::StatusOr<size_t> index = IndexOf(name, kAggModes);
  if (!index.ok()) return index.status();
  return static_cast<AggMode>(*index);
}

absl::StatusOr<KlName> ParseKlType(std::string_view name) {
  absl::StatusOr<size_t> index = IndexOf(name, kKlTypes);
  if (!index.ok()) return index.status();
  return KlName{.type = kKlTypeOfBase[*index / 2], .straight_through = *index % 2 == 1};
}

std::span<const std::string_view> LossModeNames() { return kLossModes; }
std::span<const std::string_view> AggModeNames() { return kAggModes; }
std::span<const std::string_view> KlTypeNames() { return kKlTypes; }

}  // namespace stemma
