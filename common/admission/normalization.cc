#include "common/admission/normalization.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/admission/violations.h"
#include "common/base/arrays.h"
#include "common/base/error.h"
#include "common/base/status_macros.h"
#include "common/trace/sample_tokens.h"
#include "glog/logging.h"

namespace stemma {
namespace {

constexpr double kStdEpsilon = 1e-6;

bool SendsAdvantage(const v1::Rollout& rollout) { return rollout.advantages_case() != v1::Rollout::ADVANTAGES_NOT_SET; }

// A rollout whose reward becomes its advantage.
struct Member {
  v1::Rollout* rollout;
  std::string path;  // "groups[3].rollouts[1]"
};

// The members of one stat_group. Rollouts of one sample_id are parts of one trajectory, which was rewarded once.
struct StatGroup {
  std::vector<Member> members;
  std::vector<double> rewards;  // one for each sample
  std::set<std::string> sample_ids;
};

// The first member of each sample_id of the request, in whichever stat_group.
using FirstsOfSamples = std::map<std::string, Member>;

absl::Status UnequalRewardsError(const std::string& uid, const Member& member, const Member& first) {
  Violations violations;
  violations.Add(member.path + ".reward",
                 absl::StrCat("is ", member.rollout->reward(), ", but ", first.rollout->reward(), " in ", first.path,
                              " of the same sample_id ", Shortened(member.rollout->sample_id(), 40),
                              ", one sample in the whole request: send one reward, or advantages, or two ids"),
                 uid);
  return violations.ToStatus();
}

absl::Status AddMember(const std::string& uid, Member member, FirstsOfSamples& firsts, StatGroup& to) {
  bool is_new_sample = true;
  if (member.rollout->has_sample_id()) {
    const std::string& id = member.rollout->sample_id();
    const Member& first = firsts.try_emplace(id, member).first->second;
    if (member.rollout->reward() != first.rollout->reward()) return UnequalRewardsError(uid, member, first);
    is_new_sample = to.sample_ids.insert(id).second;
  }
  if (is_new_sample) to.rewards.push_back(member.rollout->reward());
  to.members.push_back(std::move(member));
  return absl::OkStatus();
}

// The mean is `first`, one of the rewards, and `offset`: so rewards of one size lose nothing to what they have in
// common, and one at the mean has the advantage 0, in whatever order they come.
struct RewardMoments {
  double first = 0, offset = 0;
  double deviation = 1;

  double Centred(double reward) const { return (reward - first) - offset; }
};

// One reward alone has mean 0 and deviation 1.
RewardMoments MomentsOf(const std::vector<double>& rewards) {
  if (rewards.size() == 1) return {};
  const auto count = static_cast<double>(rewards.size());
  RewardMoments moments = {.first = rewards.front()};
  double sum = 0, squares = 0;
  for (const double reward : rewards) sum += reward - moments.first;
  moments.offset = sum / count;
  for (const double reward : rewards) squares += std::pow(moments.Centred(reward), 2);
  moments.deviation = std::sqrt(squares / (count - 1));
  return moments;
}

// Names the rollouts with the smallest and the largest reward.
absl::Status OverflowError(const std::string& name, const StatGroup& group, const char* what,
                           const RunNumbers& numbers) {
  const auto [low, high] =
      std::minmax_element(group.members.begin(), group.members.end(),
                          [](const Member& a, const Member& b) { return a.rollout->reward() < b.rollout->reward(); });
  Violations violations;
  for (const Member& member : {*low, *high}) {
    violations.Add(
        member.path + ".reward",
        absl::StrCat("is ", member.rollout->reward(), ": ", what, " of the ", group.rewards.size(),
                     " rewards of its stat_group overflows in ",
                     absl::string_view(numbers.dtype.data(), numbers.dtype.size()), "; send smaller rewards"),
        name);
  }
  return violations.ToStatus();
}

absl::Status SetAdvantages(bool normalize_std, const std::string& name, const StatGroup& group,
                           const RunNumbers& numbers) {
  const RewardMoments moments = MomentsOf(group.rewards);
  if (!std::isfinite(moments.offset) || (normalize_std && !std::isfinite(moments.deviation))) {
    return OverflowError(name, group, normalize_std ? "the variance" : "the mean", numbers);
  }
  for (const Member& member : group.members) {
    const double centred = moments.Centred(member.rollout->reward());
    const double advantage = normalize_std ? centred / (moments.deviation + kStdEpsilon) : centred;
    if (!(std::abs(advantage) <= numbers.largest)) {
      return OverflowError(name, group, "an advantage", numbers);
    }
    member.rollout->set_advantage(advantage);
  }
  return absl::OkStatus();
}

// Whether the mode's D counts samples: rollouts, of which those with one sample_id are one.
bool CountsSamples(AggMode mode) {
  return mode == AggMode::kSeqMeanTokenSum || mode == AggMode::kSeqMeanTokenSumNorm ||
         mode == AggMode::kSeqMeanTokenMean;
}

// Calls `visit` with each name that ties the group, or a rollout of it, to others of its mean.
template <typename Visit>
void VisitNames(AggMode mode, const v1::PromptGroup& group, const Visit& visit) {
  if (mode == AggMode::kPromptMean) return visit(StatGroupOf(group));
  if (!CountsSamples(mode)) return;
  for (const v1::Rollout& rollout : group.rollouts()) {
    if (rollout.has_sample_id()) visit(rollout.sample_id());
  }
}

absl::Status ApartError(AggMode mode, const std::string& name) {
  const char* const field = mode == AggMode::kPromptMean ? "stat_group" : "sample_id";
  return MakeError(Reason::kUnsupported,
                   absl::StrCat(field, " \"", name,
                                "\" has members in several mini-batches: its mean is not defined there; send its "
                                "groups next to each other, without shuffle, or raise ppo_mini_batch_size"),
                   {.field = field});
}

int64_t UnmaskedTokensOfGroup(const v1::PromptGroup& group) {
  int64_t sum = 0;
  for (const v1::Rollout& rollout : group.rollouts()) sum += UnmaskedTokens(rollout);
  return sum;
}

double MeanWeight(int64_t tokens) { return tokens == 0 ? 0 : 1 / static_cast<double>(tokens); }

void SetPromptMeans(const std::vector<v1::PromptGroup>& groups, std::span<const uint32_t> mini_batch,
                    StepNormalization& step) {
  absl::flat_hash_map<std::string, int64_t> tokens;
  for (const uint32_t index : mini_batch) tokens[StatGroupOf(groups[index])] += UnmaskedTokensOfGroup(groups[index]);
  for (const uint32_t index : mini_batch) {
    const double weight = MeanWeight(tokens[StatGroupOf(groups[index])]);
    step.rollout_weights.insert(step.rollout_weights.end(), static_cast<size_t>(groups[index].rollouts_size()), weight);
  }
  step.denominator = static_cast<double>(tokens.size());
}

void SetSampleWeights(const std::vector<v1::PromptGroup>& groups, std::span<const uint32_t> mini_batch,
                      const SampleTokens& samples, StepNormalization& step) {
  for (const uint32_t index : mini_batch) {
    for (const v1::Rollout& rollout : groups[index].rollouts()) {
      step.rollout_weights.push_back(MeanWeight(samples.UnmaskedTokensOfSample(rollout)));
    }
  }
}

}  // namespace

const std::string& StatGroupOf(const v1::PromptGroup& group) {
  return group.has_stat_group() ? group.stat_group() : group.uid();
}

absl::Status FillAdvantages(const v1::LossConfig& loss, const RunNumbers& numbers,
                            std::vector<v1::PromptGroup>& groups) {
  ASSIGN_OR_RETURN(const LossMode mode, ParseLossMode(loss.loss_mode()));
  if (!NeedsAdvantages(mode)) return absl::OkStatus();
  std::map<std::string, StatGroup> by_stat_group;
  FirstsOfSamples firsts;
  for (size_t g = 0; g < groups.size(); ++g) {
    for (int r = 0; r < groups[g].rollouts_size(); ++r) {
      v1::Rollout* rollout = groups[g].mutable_rollouts(r);
      if (SendsAdvantage(*rollout)) continue;
      if (!rollout->has_reward()) {
        return absl::InvalidArgumentError(absl::StrCat("groups[", g, "].rollouts[", r, "] of uid \"", groups[g].uid(),
                                                       "\" has neither an advantage nor a reward"));
      }
      RETURN_IF_ERROR(AddMember(groups[g].uid(), {rollout, absl::StrCat("groups[", g, "].rollouts[", r, "]")}, firsts,
                                by_stat_group[StatGroupOf(groups[g])]));
    }
  }
  for (const auto& [name, group] : by_stat_group) {
    RETURN_IF_ERROR(SetAdvantages(loss.normalize_advantage_std(), name, group, numbers));
  }
  return absl::OkStatus();
}

StepNormalizer::StepNormalizer(const v1::LossConfig& loss, const std::vector<v1::PromptGroup>& groups)
    : loss_(loss), groups_(groups), mode_(ParseAggMode(loss.loss_agg_mode())) {
  if (!mode_.ok()) return;
  for (const v1::PromptGroup& group : groups) VisitNames(*mode_, group, [&](const auto& name) { ++members_[name]; });
}

absl::Status StepNormalizer::CheckTogether(std::span<const uint32_t> mini_batch) const {
  absl::flat_hash_map<std::string, int64_t> here;
  for (const uint32_t index : mini_batch) {
    VisitNames(*mode_, groups_[index], [&](const auto& name) { ++here[name]; });
  }
  absl::Status status;
  // Goes through the mini-batch again rather than through the counts, whose order differs from process to process.
  for (const uint32_t index : mini_batch) {
    VisitNames(*mode_, groups_[index], [&](const std::string& name) {
      if (status.ok() && members_.at(name) != here.at(name)) status = ApartError(*mode_, name);
    });
  }
  return status;
}

absl::StatusOr<StepNormalization> StepNormalizer::Normalize(std::span<const uint32_t> mini_batch) const {
  RETURN_IF_ERROR(mode_.status());
  RETURN_IF_ERROR(CheckTogether(mini_batch));
  StepNormalization step;
  step.rollout_weights = {1};
  SampleTokens samples;
  for (const uint32_t index : mini_batch) {
    step.num_loss_tokens += UnmaskedTokensOfGroup(groups_[index]);
    for (const v1::Rollout& rollout : groups_[index].rollouts()) samples.Add(rollout);
  }
  if (CountsSamples(*mode_)) step.denominator = static_cast<double>(samples.num_samples());
  switch (*mode_) {
    case AggMode::kTokenMean:
      step.denominator = static_cast<double>(step.num_loss_tokens);
      break;
    case AggMode::kTokenSum:
      step.denominator = 1;
      break;
    case AggMode::kSeqMeanTokenSum:
      break;
    case AggMode::kSeqMeanTokenSumNorm:
      CHECK_GT(loss_.loss_scale_factor(), 0) << "validated";
      step.rollout_weights = {1 / loss_.loss_scale_factor()};
      break;
    case AggMode::kSeqMeanTokenMean:
      step.rollout_weights.clear();
      SetSampleWeights(groups_, mini_batch, samples, step);
      break;
    case AggMode::kPromptMean:
      step.rollout_weights.clear();
      SetPromptMeans(groups_, mini_batch, step);
      break;
  }
  return step;
}

bool RolloutRuns(const v1::UpdateHeader& header, const v1::Rollout& rollout) {
  return header.return_log_probs() ? UnmaskedTokens(rollout) > 0 : HasLoss(header.loss(), rollout);
}

bool HasLoss(const v1::LossConfig& loss, const v1::Rollout& rollout) {
  if (UnmaskedTokens(rollout) == 0) return false;
  if (loss.has_kl_loss_coef() || loss.has_entropy_coeff()) return true;

  const absl::StatusOr<LossMode> mode = ParseLossMode(loss.loss_mode());
  const bool reads_advantage = mode.ok() && NeedsAdvantages(*mode);
  const FloatArray advantages(rollout.token_advantages()), importance(rollout.rollout_is_weights()),
      loss_weights(rollout.loss_weights());
  const MaskView mask(rollout.response_mask(), TokenArray(rollout.response_tokens()).size());
  for (int64_t t = 0; t < mask.size(); ++t) {
    if (!mask[t]) continue;
    if (!reads_advantage) {
      if (loss_weights[t] != 0) return true;
      continue;
    }
    const double advantage = advantages.empty() ? rollout.advantage() : advantages[t];
    if (advantage != 0 && (importance.empty() || importance[t] != 0)) return true;
  }
  return false;
}

}  // namespace stemma
