#include "common/admission/group_rules.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/arrays.h"
#include "common/base/message_sizes.h"

namespace stemma {
namespace {

// Both look at every element without a branch, as all but a few arrays are good.
bool AllWithin(const TokenArray& tokens, int64_t vocab_size) {
  const auto vocab = static_cast<uint32_t>(std::min<int64_t>(vocab_size, int64_t{1} << 31));
  uint32_t beyond = 0;
  for (int64_t i = 0; i < tokens.size(); ++i) beyond |= static_cast<uint32_t>(tokens[i]) >= vocab ? 1 : 0;
  return beyond == 0;
}

bool AllFinite(const FloatArray& numbers) {
  constexpr uint32_t kExponent = 0x7f800000;
  uint32_t not_finite = 0;
  for (int64_t i = 0; i < numbers.size(); ++i) {
    not_finite |= (std::bit_cast<uint32_t>(numbers[i]) & kExponent) == kExponent ? 1 : 0;
  }
  return not_finite == 0;
}

// Problems of one group, under its uid.
class GroupCheck {
 public:
  GroupCheck(std::string path, const std::string& uid, const GroupLimits& limits, Violations& violations)
      : path_(std::move(path)), uid_(uid), numbers_(limits.numbers), violations_(violations) {}

  void Add(const std::string& field, const std::string& text) {
    violations_.Add(absl::StrCat(path_, ".", field), text, uid_);
  }

  void CheckString(const std::string& field, const std::string& value, uint64_t bytes_max) {
    if (value.empty()) Add(field, "is empty");
    if (value.size() > bytes_max) Add(field, absl::StrCat("has ", value.size(), " bytes, the limit is ", bytes_max));
  }

  // The number of tokens, those of a broken array rounded down.
  int64_t CheckTokens(const std::string& field, const std::string& bytes, int64_t vocab_size) {
    if (bytes.size() % sizeof(int32_t) != 0) {
      Add(field, absl::StrCat("has ", bytes.size(), " bytes, not a whole number of int32 tokens"));
    }
    const TokenArray tokens(bytes);
    if (AllWithin(tokens, vocab_size)) return tokens.size();
    for (int64_t i = 0; i < tokens.size(); ++i) {
      const int32_t token = tokens[i];
      if (token >= 0 && token < vocab_size) continue;
      Add(absl::StrCat(field, "[", i, "]"), absl::StrCat("is token ", token, ", the vocabulary has ", vocab_size));
      break;  // one array, one problem
    }
    return tokens.size();
  }

  // Where the mask itself is wrong, it is empty here. True: the numbers are there, and all that count are finite.
  bool CheckNumbers(const std::string& field, const std::string& bytes, const MaskView& mask, bool needed) {
    const int64_t size = mask.size();
    if (bytes.empty()) {
      if (needed && size > 0) Add(field, absl::StrCat("is missing: the header asks for ", size, " numbers"));
      return false;
    }
    if (const absl::Status status = CheckArraySize(bytes, size, sizeof(float)); !status.ok()) {
      Add(field, std::string(status.message()));
      return false;
    }
    const FloatArray numbers(bytes);
    if (AllFinite(numbers)) return true;
    for (int64_t i = 0; i < size; ++i) {
      if (!mask[i] || std::isfinite(numbers[i])) continue;
      Add(absl::StrCat(field, "[", i, "]"), absl::StrCat("is ", numbers[i], ", must be finite"));
      return false;
    }
    return true;
  }

  void CheckImportanceWeights(const std::string& bytes, const MaskView& mask) {
    if (!CheckNumbers("rollout_is_weights", bytes, mask, false)) return;
    const FloatArray weights(bytes);
    for (int64_t i = 0; i < mask.size(); ++i) {
      if (!mask[i] || weights[i] >= 0) continue;
      return Add(
          absl::StrCat("rollout_is_weights[", i, "]"),
          absl::StrCat("is ", weights[i], ": importance weights are not negative; if these are log-ratios, take exp"));
    }
  }

  // What is never cut into several messages fits one.
  void CheckUncut(const std::string& field, uint64_t bytes) {
    if (bytes <= kUncutBytesMax) return;
    Add(field, absl::StrCat("takes ", bytes, " bytes with all that belongs to it, or its result does; at most ",
                            kUncutBytesMax, " fit a message to or from a worker: send fewer tokens"));
  }

  void CheckNumber(const std::string& field, double value) {
    if (!std::isfinite(value)) return Add(field, absl::StrCat("is ", value, ", must be finite"));
    if (const std::string problem = CheckMagnitude(value, numbers_); !problem.empty()) Add(field, problem);
  }

 private:
  const std::string path_;
  const std::string& uid_;
  const RunNumbers& numbers_;
  Violations& violations_;
};

void CheckAdvantages(const v1::Rollout& rollout, const RolloutNeeds& needs, const MaskView& mask, GroupCheck& check) {
  using Kind = v1::Rollout::AdvantagesCase;
  const Kind kind = rollout.advantages_case();
  if (kind == Kind::kAdvantage) check.CheckNumber("advantage", rollout.advantage());
  if (kind == Kind::kTokenAdvantages) check.CheckNumbers("token_advantages", rollout.token_advantages(), mask, true);
  if (rollout.has_reward()) check.CheckNumber("reward", rollout.reward());
  if (kind == Kind::ADVANTAGES_NOT_SET && needs.advantages) {
    if (!rollout.has_reward()) {
      check.Add("advantage", "is missing, and there is no reward to make one from: the loss mode needs it");
    } else if (!needs.normalize_std_given) {
      check.Add("reward", "would become an advantage, but update.loss.normalize_advantage_std is missing");
    }
  }
}

// Refuses what is sent and never read: the sender believes that it counts. Asks nothing of fields whose reader in the
// header is wrong itself.
void CheckNothingUnread(const v1::Rollout& rollout, const RolloutNeeds& needs, GroupCheck& check) {
  using Kind = v1::Rollout::AdvantagesCase;
  const auto refuse = [&check](const char* field, bool unread, const std::string& why) {
    if (unread) check.Add(field, absl::StrCat("is set, but ", why, "; leave it out, or send what reads it"));
  };
  const auto only = [](const char* reader, const std::string& from) {
    return absl::StrCat("only ", reader, " reads it, and that is ", from);
  };
  const bool old_is_read = needs.old_log_probs || !needs.old_known;
  const bool rollout_is_read = needs.rollout_log_probs || !needs.old_known;
  const bool ref_is_read = needs.ref_log_prob || !needs.ref_known;
  refuse("old_log_probs", !rollout.old_log_probs().empty() && !old_is_read,
         only("update.old from CLIENT", needs.old_from));
  refuse("rollout_log_probs", !rollout.rollout_log_probs().empty() && !rollout_is_read,
         only("update.old from ROLLOUT", needs.old_from));
  refuse("ref_log_prob", !rollout.ref_log_prob().empty() && !ref_is_read,
         only("update.ref from CLIENT", needs.ref_from));
  if (!needs.mode_known) return;
  const std::string mode = absl::StrCat("loss_mode ", needs.loss_mode, " never reads it");
  refuse("advantage", rollout.advantages_case() == Kind::kAdvantage && !needs.reads_advantages, mode);
  refuse("token_advantages", rollout.advantages_case() == Kind::kTokenAdvantages && !needs.reads_advantages, mode);
  refuse("reward", rollout.has_reward() && !needs.reads_advantages, mode);
  refuse("reward",
         rollout.has_reward() && needs.reads_advantages && rollout.advantages_case() != Kind::ADVANTAGES_NOT_SET,
         "it stands beside an advantage, and only a rollout without one reads it");
  refuse("rollout_is_weights", !rollout.rollout_is_weights().empty() && !needs.reads_importance_weights, mode);
  refuse("loss_weights", !rollout.loss_weights().empty() && !needs.reads_loss_weights,
         absl::StrCat(mode, " (cross_entropy does)"));
}

}  // namespace

void CheckGroup(const std::string& path, const v1::PromptGroup& group, const GroupLimits& limits,
                Violations& violations) {
  GroupCheck check(path, group.uid(), limits, violations);
  check.CheckString("uid", group.uid(), limits.string_bytes);
  if (group.has_stat_group()) check.CheckString("stat_group", group.stat_group(), limits.string_bytes);
  if (check.CheckTokens("prompt_tokens", group.prompt_tokens(), limits.vocab_size) == 0) {
    check.Add("prompt_tokens", "is empty: a prompt has at least one token");
  }
  check.CheckUncut("prompt_tokens", group.prompt_tokens().size());
}

void CheckRollout(const RolloutPlace& place, const v1::Rollout& rollout, const RolloutNeeds& needs,
                  const GroupLimits& limits, Violations& violations) {
  GroupCheck check(place.path, place.uid, limits, violations);
  check.CheckString("rollout_id", rollout.rollout_id(), limits.string_bytes);
  if (rollout.has_sample_id()) check.CheckString("sample_id", rollout.sample_id(), limits.string_bytes);
  const int64_t size = check.CheckTokens("response_tokens", rollout.response_tokens(), limits.vocab_size);
  if (place.prompt_tokens + size > limits.max_positions) {
    check.Add("response_tokens", absl::StrCat("is ", size, " tokens after a prompt of ", place.prompt_tokens,
                                              "; the model has ", limits.max_positions, " positions"));
  }
  check.CheckUncut("response_tokens",
                   std::max<uint64_t>(rollout.ByteSizeLong(), static_cast<uint64_t>(size) * kResultBytesPerToken));
  const absl::Status mask_status = CheckMask(rollout.response_mask(), size);
  if (!mask_status.ok()) check.Add("response_mask", std::string(mask_status.message()));
  const MaskView mask(mask_status.ok() ? std::string_view(rollout.response_mask()) : std::string_view(), size);
  check.CheckNumbers("old_log_probs", rollout.old_log_probs(), mask, needs.old_log_probs);
  check.CheckNumbers("rollout_log_probs", rollout.rollout_log_probs(), mask, needs.rollout_log_probs);
  check.CheckNumbers("ref_log_prob", rollout.ref_log_prob(), mask, needs.ref_log_prob);
  check.CheckImportanceWeights(rollout.rollout_is_weights(), mask);
  check.CheckNumbers("loss_weights", rollout.loss_weights(), mask, needs.loss_weights);
  CheckAdvantages(rollout, needs, mask, check);
  CheckNothingUnread(rollout, needs, check);
}

}  // namespace stemma
