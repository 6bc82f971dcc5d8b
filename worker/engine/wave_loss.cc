#include "worker/engine/wave_loss.h"

#include <glog/logging.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "common/base/status_macros.h"
#include "common/trace/loss_names.h"

namespace stemma::worker {
namespace {

void AppendFloats(const std::string& bytes, std::vector<double>& out) {
  for (size_t offset = 0; offset < bytes.size(); offset += sizeof(float)) {
    float value;
    std::memcpy(&value, bytes.data() + offset, sizeof(value));
    out.push_back(value);
  }
}

void AppendTokens(const std::string& bytes, std::vector<int64_t>& out) {
  for (size_t offset = 0; offset < bytes.size(); offset += sizeof(int32_t)) {
    int32_t value;
    std::memcpy(&value, bytes.data() + offset, sizeof(value));
    out.push_back(value);
  }
}

bool MaskBit(const std::string& mask, size_t index) {
  return mask.empty() || (static_cast<unsigned char>(mask[index / 8]) >> (index % 8) & 1) != 0;
}

// Log-probs that `from` names, for one rollout; nothing where they are not read.
void AppendSource(v1::LogProbSource::From from, const std::string& client, const v1::Rollout& rollout,
                  const std::vector<double>* entry, std::vector<double>& out) {
  switch (from) {
    case v1::LogProbSource::CLIENT:
      return AppendFloats(client, out);
    case v1::LogProbSource::ROLLOUT:
      return AppendFloats(rollout.rollout_log_probs(), out);
    case v1::LogProbSource::WEIGHTS:
      CHECK(entry != nullptr) << "the log-prob pass did not run";
      out.insert(out.end(), entry->begin(), entry->end());
      return;
    default:  // unset, or ON_POLICY, which the gradient fills from the log-probs themselves
      return;
  }
}

template <typename T>
std::span<const T> Part(const std::vector<T>& all, RowRange range) {
  if (all.empty()) return {};
  return std::span<const T>(all).subspan(static_cast<size_t>(range.begin),
                                         static_cast<size_t>(range.end - range.begin));
}

}  // namespace

absl::StatusOr<LossPlan> MakeLossPlan(const internal::v1::Prepare& prepare, const Payload& payload) {
  const v1::LossConfig& loss = prepare.header().loss();
  LossPlan plan;
  ASSIGN_OR_RETURN(plan.options.mode, ParseLossMode(loss.loss_mode()));
  ASSIGN_OR_RETURN(plan.agg_mode, ParseAggMode(loss.loss_agg_mode()));
  plan.options.clip_low = loss.clip_ratio_low();
  plan.options.clip_high = loss.clip_ratio_high();
  if (loss.has_clip_ratio_c()) plan.options.clip_c = loss.clip_ratio_c();
  plan.options.entropy_coeff = loss.entropy_coeff();
  plan.old_from = prepare.header().old().from();
  if (loss.kl_loss_coef() != 0) {
    ASSIGN_OR_RETURN(const KlName kl, ParseKlType(loss.kl_loss_type()));
    plan.options.kl_coef = loss.kl_loss_coef();
    plan.options.kl_type = kl.type;
    plan.options.kl_straight_through = kl.straight_through;
    plan.ref_from = prepare.header().ref().from();
  }
  plan.loss_scale_factor = loss.loss_scale_factor();
  plan.temperature = loss.temperature();
  plan.denominator = prepare.denominator();
  for (const uint32_t g : prepare.plan().groups()) {
    if (g >= payload.groups.size())
      return absl::InvalidArgumentError("the plan names a group that is not in the payload");
    for (const v1::Rollout& rollout : payload.groups[g].rollouts()) plan.samples.Add(rollout);
  }
  if (plan.agg_mode == AggMode::kPromptMean) {
    if (prepare.prompt_mean_weights_size() != prepare.plan().groups_size()) {
      return absl::InvalidArgumentError("prompt_mean_weights: one per group of the plan is needed");
    }
    plan.prompt_mean_weight.assign(payload.groups.size(), 0);
    for (int i = 0; i < prepare.plan().groups_size(); ++i) {
      plan.prompt_mean_weight[prepare.plan().groups(i)] = prepare.prompt_mean_weights(i);
    }
  }
  return plan;
}

WaveLoss::WaveLoss(const LossPlan& plan, const Payload& payload, const std::vector<MemberRows>& members) : plan_(plan) {
  for (const MemberRows& member : members) AddMember(payload, member);
}

void WaveLoss::AddMember(const Payload& payload, const MemberRows& member) {
  const v1::Rollout& rollout = payload.groups[member.group].rollouts(static_cast<int>(member.rollout));
  const size_t first = targets_.size();
  AppendTokens(rollout.response_tokens(), targets_);
  const size_t rows = targets_.size() - first;
  rollouts_.push_back({static_cast<int64_t>(first), static_cast<int64_t>(targets_.size())});

  const std::vector<double>* entry =
      payload.entry_log_probs.empty() ? nullptr : &payload.entry_log_probs[member.group][member.rollout];
  AppendSource(plan_.old_from, rollout.old_log_probs(), rollout, entry, old_);
  AppendSource(plan_.ref_from, rollout.ref_log_prob(), rollout, entry, ref_);
  if (rollout.has_token_advantages()) {
    AppendFloats(rollout.token_advantages(), advantage_);
  } else {
    advantage_.insert(advantage_.end(), rows, rollout.advantage());
  }
  if (rollout.rollout_is_weights().empty()) {
    importance_.insert(importance_.end(), rows, 1.0);
  } else {
    AppendFloats(rollout.rollout_is_weights(), importance_);
  }
  if (rollout.loss_weights().empty()) {
    loss_weight_.insert(loss_weight_.end(), rows, 0.0);
  } else {
    AppendFloats(rollout.loss_weights(), loss_weight_);
  }

  TokenWeightInputs inputs;
  for (size_t t = 0; t < rows; ++t) mask_.push_back(MaskBit(rollout.response_mask(), t) ? 1 : 0);
  inputs.mask_sum = plan_.samples.UnmaskedTokensOfSample(rollout);
  if (!plan_.prompt_mean_weight.empty()) inputs.prompt_mean_weight = plan_.prompt_mean_weight[member.group];
  inputs.loss_scale_factor = plan_.loss_scale_factor;
  inputs.denominator = plan_.denominator;
  const double weight = TokenWeight(plan_.agg_mode, inputs);
  for (size_t t = first; t < targets_.size(); ++t) weight_.push_back(mask_[t] != 0 ? weight : 0.0);
}

void WaveLoss::Gradient(RowRange range, std::span<const double> log_prob, std::span<const double> entropy,
                        std::span<double> dlog_prob, std::span<double> dentropy) {
  LossTokens tokens;
  tokens.old_log_prob = plan_.old_from == v1::LogProbSource::ON_POLICY ? log_prob : Part(old_, range);
  tokens.ref_log_prob = Part(ref_, range);
  tokens.advantage = Part(advantage_, range);
  tokens.importance_weight = Part(importance_, range);
  tokens.loss_weight = Part(loss_weight_, range);
  tokens.weight = Part(weight_, range);
  tokens.mask = Part(mask_, range);
  LossGradient(plan_.options, tokens, log_prob, entropy, dlog_prob, dentropy, sums_);
}

}  // namespace stemma::worker
