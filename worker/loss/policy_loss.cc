#include "worker/loss/policy_loss.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "glog/logging.h"

namespace stemma::worker {
namespace {

constexpr double kLogRatioBound = 20;       // of d = lp - lo, token-level modes
constexpr double kSequenceRatioBound = 10;  // of gspo's s, above only
constexpr double kKlExponentBound = 20;
constexpr double kKlValueBound = 10;

// A loss's value and its derivative with respect to the token's log-prob.
struct TokenLoss {
  double value = 0;
  double gradient = 0;
  bool clipped = false;
  bool clipped_lower = false;
};

double Clip(const LossOptions& options, double ratio) {
  return std::clamp(ratio, 1 - options.clip_low, 1 + options.clip_high);
}

// max(-A·r, -A·clip(r)): inside the interval and on its bounds the gradient is whole, beyond the active bound it is 0.
TokenLoss ClippedSurrogate(const LossOptions& options, double advantage, double ratio) {
  const double plain = -advantage * ratio;
  const double bounded = -advantage * Clip(options, ratio);
  const bool clipped = bounded > plain;
  return {.value = std::max(plain, bounded), .gradient = clipped ? 0 : plain, .clipped = clipped};
}

TokenLoss Vanilla(const LossOptions& options, double advantage, double log_ratio) {
  const double ratio = std::exp(std::clamp(log_ratio, -kLogRatioBound, kLogRatioBound));
  TokenLoss loss = ClippedSurrogate(options, advantage, ratio);
  if (options.clip_c.has_value() && advantage < 0) {
    const double bound = -advantage * *options.clip_c;
    if (loss.value > bound) {
      loss.value = bound;
      loss.gradient = 0;
      loss.clipped_lower = true;
    }
  }
  if (std::abs(log_ratio) > kLogRatioBound) loss.gradient = 0;
  return loss;
}

// `log_ratio` is the rollout's mean.
TokenLoss Gspo(const LossOptions& options, double advantage, double log_ratio) {
  const double ratio = std::exp(std::min(log_ratio, kSequenceRatioBound));
  TokenLoss loss = ClippedSurrogate(options, advantage, ratio);
  if (log_ratio > kSequenceRatioBound) loss.gradient = 0;
  return loss;
}

TokenLoss Cispo(const LossOptions& options, double advantage, double log_ratio, double log_prob) {
  const double ratio = std::exp(std::clamp(log_ratio, -kLogRatioBound, kLogRatioBound));
  const double bounded = Clip(options, ratio);
  return {.value = -bounded * advantage * log_prob, .gradient = -bounded * advantage, .clipped = bounded != ratio};
}

TokenLoss ImportanceSampling(double advantage, double log_ratio) {
  const double value = -std::exp(std::clamp(log_ratio, -kLogRatioBound, kLogRatioBound)) * advantage;
  return {.value = value, .gradient = std::abs(log_ratio) > kLogRatioBound ? 0 : value};
}

TokenLoss PolicyLoss(const LossOptions& options, const LossTokens& tokens, size_t row, double log_prob,
                     double sequence_log_ratio) {
  const double log_ratio = NeedsOldLogProbs(options.mode) ? log_prob - tokens.old_log_prob[row] : 0;
  switch (options.mode) {
    case LossMode::kVanilla:
      return Vanilla(options, tokens.advantage[row], log_ratio);
    case LossMode::kGspo:
      return Gspo(options, tokens.advantage[row], sequence_log_ratio);
    case LossMode::kCispo:
      return Cispo(options, tokens.advantage[row], log_ratio, log_prob);
    case LossMode::kImportanceSampling:
      return ImportanceSampling(tokens.advantage[row], log_ratio);
    case LossMode::kCrossEntropy:
      return {.value = -tokens.loss_weight[row] * log_prob, .gradient = -tokens.loss_weight[row]};
    case LossMode::kGpg:
      return {.value = -tokens.advantage[row] * log_prob, .gradient = -tokens.advantage[row]};
  }
  LOG(FATAL) << "loss mode " << static_cast<int>(options.mode);
}

TokenLoss LowVarianceKl(double x) {
  const double y = std::clamp(x, -kKlExponentBound, kKlExponentBound);
  const double value = std::exp(y) - y - 1;
  const bool bounded = value > kKlValueBound;
  return {.value = bounded ? kKlValueBound : value, .gradient = bounded ? 0 : 1 - std::exp(y)};
}

// x = ref - log_prob.
TokenLoss KlLoss(const LossOptions& options, double x) {
  TokenLoss loss;
  switch (options.kl_type) {
    case KlType::kNone:
      return loss;
    case KlType::kK1:
      loss = {.value = -x, .gradient = 1};
      break;
    case KlType::kAbs:
      loss = {.value = std::abs(x), .gradient = x > 0 ? -1.0 : x < 0 ? 1.0 : 0.0};
      break;
    case KlType::kK2:
      loss = {.value = x * x / 2, .gradient = -x};
      break;
    case KlType::kK3:
      loss = LowVarianceKl(x);
      break;
  }
  if (options.kl_straight_through) loss.gradient = -x;
  return loss;
}

double SequenceLogRatio(const LossTokens& tokens, std::span<const double> log_prob) {
  double sum = 0, count = 0;
  for (size_t row = 0; row < log_prob.size(); ++row) {
    if (!tokens.mask[row]) continue;
    sum += log_prob[row] - tokens.old_log_prob[row];
    count += 1;
  }
  return sum / std::max(count, 1.0);
}

void CheckSizes(const LossOptions& options, const LossTokens& tokens, size_t rows) {
  CHECK_EQ(tokens.mask.size(), rows);
  CHECK_EQ(tokens.weight.size(), rows);
  const LossModeRequirements needs = RequirementsOf(options.mode);
  if (needs.needs_old) CHECK_EQ(tokens.old_log_prob.size(), rows);
  if (needs.needs_advantage) CHECK_EQ(tokens.advantage.size(), rows);
  if (needs.needs_loss_weights) CHECK_EQ(tokens.loss_weight.size(), rows);
  if (options.kl_type != KlType::kNone) CHECK_EQ(tokens.ref_log_prob.size(), rows);
  if (!tokens.importance_weight.empty()) CHECK_EQ(tokens.importance_weight.size(), rows);
}

double NegativeLogRatio(const LossOptions& options, const LossTokens& tokens, size_t row, double log_prob) {
  if (!NeedsOldLogProbs(options.mode)) return 0;
  const double value = tokens.old_log_prob[row] - log_prob;
  return options.mode == LossMode::kGspo ? value : std::clamp(value, -kLogRatioBound, kLogRatioBound);
}

}  // namespace

LossSums& LossSums::operator+=(const LossSums& other) {
  pg += other.pg;
  kl += other.kl;
  entropy += other.entropy;
  plain_entropy += other.plain_entropy;
  clipped += other.clipped;
  clipped_lower += other.clipped_lower;
  neg_log_ratio += other.neg_log_ratio;
  tokens += other.tokens;
  return *this;
}

void LossGradient(const LossOptions& options, const LossTokens& tokens, std::span<const double> log_prob,
                  std::span<const double> entropy, std::span<double> dlog_prob, std::span<double> dentropy,
                  LossSums& sums) {
  CheckSizes(options, tokens, log_prob.size());
  const double sequence_log_ratio = options.mode == LossMode::kGspo ? SequenceLogRatio(tokens, log_prob) : 0;
  for (size_t row = 0; row < log_prob.size(); ++row) {
    dlog_prob[row] = 0;
    if (!dentropy.empty()) dentropy[row] = 0;
    if (!tokens.mask[row]) continue;
    const double weight = tokens.weight[row];
    const double importance = tokens.importance_weight.empty() ? 1 : tokens.importance_weight[row];
    const TokenLoss policy = PolicyLoss(options, tokens, row, log_prob[row], sequence_log_ratio);
    sums.pg += weight * importance * policy.value;
    sums.clipped += policy.clipped;
    sums.clipped_lower += policy.clipped_lower;
    sums.neg_log_ratio += NegativeLogRatio(options, tokens, row, log_prob[row]);
    sums.tokens += 1;
    dlog_prob[row] = weight * importance * policy.gradient;
    if (options.kl_type != KlType::kNone) {
      const TokenLoss kl = KlLoss(options, tokens.ref_log_prob[row] - log_prob[row]);
      sums.kl += weight * kl.value;
      dlog_prob[row] += weight * options.kl_coef * kl.gradient;
    }
    if (!entropy.empty()) {
      sums.entropy += weight * entropy[row];
      sums.plain_entropy += entropy[row];
    }
    if (!dentropy.empty()) dentropy[row] = -options.entropy_coeff * weight;
  }
}

}  // namespace stemma::worker
