#include "client/cli/trace/synthetic_trace.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/base/arrays.h"
#include "common/base/status_macros.h"
#include "common/trace/loss_names.h"

namespace stemma::cli {
namespace {

std::string RandomTokens(int64_t count, int64_t vocab_size, RandomValues& random) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (int32_t& token : tokens) token = static_cast<int32_t>(BelowFrom(random, vocab_size));
  return PackArray(tokens);
}

std::string NoisyLogProbs(const std::vector<double>& around, double noise, RandomValues& random) {
  std::vector<float> values;
  for (const double mean : around)
    values.push_back(static_cast<float>(std::min(mean + noise * random.NextNormal(), 0.0)));
  return PackArray(values);
}

void SetLossFields(const SyntheticTraceOptions& options, const LossModeRequirements& needs, v1::LossConfig& loss) {
  loss.set_loss_mode(options.loss_mode);
  loss.set_loss_agg_mode(options.loss_agg_mode);
  loss.set_temperature(options.temperature);
  if (needs.needs_clip) {
    loss.set_clip_ratio_low(0.2);
    loss.set_clip_ratio_high(0.2);
  }
  if (needs.reads_clip_c) loss.set_clip_ratio_c(3.0);
  if (options.loss_agg_mode == "seq-mean-token-sum-norm") loss.set_loss_scale_factor(1024);
  if (options.kl_loss_coef > 0) {
    loss.set_kl_loss_coef(options.kl_loss_coef);
    loss.set_kl_loss_type("low_var_kl");
  }
  if (options.entropy_coeff != 0) loss.set_entropy_coeff(options.entropy_coeff);
}

void SetAdamFields(double learning_rate, v1::AdamParams& adam) {
  adam.set_learning_rate(learning_rate);
  adam.set_beta1(0.9);
  adam.set_beta2(0.999);
  adam.set_eps(1e-8);
  adam.set_weight_decay(0.01);
  adam.set_weight_decay_scope(v1::AdamParams::ALL);
  adam.set_max_grad_norm(1.0);
}

// Counts the tokens of a request before any of them is made.
class TokenBudget {
 public:
  absl::Status Take(int64_t tokens) {
    left_ -= tokens;
    if (left_ >= 0) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("a request has more than ", kSyntheticTokensMax,
                                                   " tokens: ask for fewer groups, fewer rollouts or shorter lengths"));
  }

 private:
  int64_t left_ = kSyntheticTokensMax;
};

void SetMask(double probability, int64_t size, RandomValues& random, v1::Rollout& rollout) {
  if (probability <= 0) return;
  std::vector<bool> mask;
  for (int64_t i = 0; i < size; ++i) mask.push_back(UniformFrom(random) >= probability);
  rollout.set_response_mask(PackMask(mask));
}

}  // namespace

absl::StatusOr<v1::UpdateHeader> SyntheticHeader(const SyntheticTraceOptions& options) {
  const absl::StatusOr<LossMode> mode = ParseLossMode(options.loss_mode);
  if (!mode.ok()) return absl::InvalidArgumentError(absl::StrCat("loss_mode ", mode.status().message()));
  const absl::Status agg_mode = ParseAggMode(options.loss_agg_mode).status();
  if (!agg_mode.ok()) return absl::InvalidArgumentError(absl::StrCat("loss_agg_mode ", agg_mode.message()));
  const LossModeRequirements needs = RequirementsOf(*mode);
  v1::UpdateHeader header;
  SetLossFields(options, needs, *header.mutable_loss());
  SetAdamFields(options.learning_rate, *header.mutable_adam());
  if (needs.needs_old) header.mutable_old()->set_from(v1::LogProbSource::CLIENT);
  if (options.kl_loss_coef > 0) header.mutable_ref()->set_from(v1::LogProbSource::CLIENT);
  return header;
}

absl::StatusOr<std::vector<v1::PromptGroup>> SyntheticGroups(const SyntheticTraceOptions& options,
                                                             const v1::UpdateHeader& header, int64_t step) {
  const auto mode = ParseLossMode(header.loss().loss_mode());
  const LossModeRequirements needs = mode.ok() ? RequirementsOf(*mode) : LossModeRequirements();
  TokenBudget budget;
  std::vector<v1::PromptGroup> groups;
  for (int64_t g = 0; g < options.groups; ++g) {
    v1::PromptGroup& group = groups.emplace_back();
    group.set_uid(absl::StrCat("s", step, "g", g));
    RandomValues random(options.seed, group.uid());  // of its own: the same group whatever was made before it
    const int64_t prompt_length = options.prompt_tokens.Sample(random);
    RETURN_IF_ERROR(budget.Take(prompt_length));
    group.set_prompt_tokens(RandomTokens(prompt_length, options.vocab_size, random));
    const int64_t num_rollouts = options.rollouts.Sample(random);
    for (int64_t n = 0; n < num_rollouts; ++n) {
      v1::Rollout& rollout = *group.add_rollouts();
      const int64_t length = options.response_tokens.Sample(random);
      RETURN_IF_ERROR(budget.Take(length));
      rollout.set_rollout_id(absl::StrCat(group.uid(), "/", n));
      rollout.set_response_tokens(RandomTokens(length, options.vocab_size, random));
      SetMask(options.mask_probability, length, random, rollout);
      if (needs.needs_advantage) rollout.set_advantage(random.NextNormal());
      if (needs.needs_loss_weights) rollout.set_loss_weights(PackArray(std::vector<float>(length, 1.0f)));
      const std::vector<double> uniform(length, -std::log(static_cast<double>(options.vocab_size)));
      SetLogProbs(options, header, uniform, random, rollout);
    }
  }
  return groups;
}

void SetLogProbs(const SyntheticTraceOptions& options, const v1::UpdateHeader& header,
                 const std::vector<double>& log_probs, RandomValues& random, v1::Rollout& rollout) {
  if (header.has_old()) rollout.set_old_log_probs(NoisyLogProbs(log_probs, options.old_noise, random));
  if (header.has_ref()) rollout.set_ref_log_prob(NoisyLogProbs(log_probs, options.old_noise, random));
}

}  // namespace stemma::cli
