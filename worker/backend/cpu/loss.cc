// The loss in plain loops, row by row. Formulas with their clamps: docs/losses.md.
#include <glog/logging.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "worker/backend/cpu/cpu_kernels.h"
#include "worker/backend/cpu/typed_data.h"

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

// The arrays behind the operands; null where a tensor is undefined.
struct RowData {
  explicit RowData(const LossOperands& args)
      : old_log_prob(Data<double>(args.rows.old_log_prob_T)),
        ref_log_prob(Data<double>(args.rows.ref_log_prob_T)),
        advantage(Data<double>(args.rows.advantage_T)),
        importance_weight(Data<double>(args.rows.importance_weight_T)),
        loss_weight(Data<double>(args.rows.loss_weight_T)),
        weight(Data<double>(args.rows.weight_T)),
        mask(Data<double>(args.rows.mask_T)),
        log_prob(Data<double>(args.log_prob_T)),
        entropy(Data<double>(args.entropy_T)),
        count(args.log_prob_T.numel()) {
    if (old_log_prob == nullptr) old_log_prob = log_prob;  // on policy
  }

  const double *old_log_prob, *ref_log_prob, *advantage, *importance_weight, *loss_weight, *weight, *mask;
  const double *log_prob, *entropy;
  const int64_t count;
};

// The mean log-ratio of each row's rollout, for the one mode that reads it.
std::vector<double> SequenceLogRatios(const RowData& rows, const at::Tensor& rollout_T) {
  const int64_t* rollout = rollout_T.const_data_ptr<int64_t>();
  std::vector<double> ratios(static_cast<size_t>(rows.count));
  for (int64_t begin = 0, end = 0; begin < rows.count; begin = end) {
    double sum = 0, count = 0;
    for (end = begin; end < rows.count && rollout[end] == rollout[begin]; ++end) {
      if (rows.mask[end] == 0) continue;
      sum += rows.log_prob[end] - rows.old_log_prob[end];
      count += 1;
    }
    std::fill(ratios.begin() + begin, ratios.begin() + end, sum / std::max(count, 1.0));
  }
  return ratios;
}

TokenLoss PolicyLoss(const LossOptions& options, const RowData& rows, int64_t row, double sequence_log_ratio) {
  const double log_prob = rows.log_prob[row];
  const double log_ratio = NeedsOldLogProbs(options.mode) ? log_prob - rows.old_log_prob[row] : 0;
  switch (options.mode) {
    case LossMode::kVanilla:
      return Vanilla(options, rows.advantage[row], log_ratio);
    case LossMode::kGspo:
      return Gspo(options, rows.advantage[row], sequence_log_ratio);
    case LossMode::kCispo:
      return Cispo(options, rows.advantage[row], log_ratio, log_prob);
    case LossMode::kImportanceSampling:
      return ImportanceSampling(rows.advantage[row], log_ratio);
    case LossMode::kCrossEntropy:
      return {.value = -rows.loss_weight[row] * log_prob, .gradient = -rows.loss_weight[row]};
    case LossMode::kGpg:
      return {.value = -rows.advantage[row] * log_prob, .gradient = -rows.advantage[row]};
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

double NegativeLogRatio(const LossOptions& options, const RowData& rows, int64_t row) {
  if (!NeedsOldLogProbs(options.mode)) return 0;
  const double value = rows.old_log_prob[row] - rows.log_prob[row];
  return options.mode == LossMode::kGspo ? value : std::clamp(value, -kLogRatioBound, kLogRatioBound);
}

}  // namespace

void CpuLoss(const LossOperands& args) {
  const LossOptions& options = args.options;
  const RowData rows(args);
  double* dlog_prob = Data<double>(args.dlog_prob_T);
  double* dentropy = Data<double>(args.dentropy_T);
  double* sums = Data<double>(args.sums);
  std::vector<double> sequence_log_ratios(static_cast<size_t>(rows.count));
  if (options.mode == LossMode::kGspo) sequence_log_ratios = SequenceLogRatios(rows, args.rows.rollout_T);
  for (int64_t row = 0; row < rows.count; ++row) {
    dlog_prob[row] = 0;
    if (dentropy != nullptr) dentropy[row] = 0;
    if (rows.mask[row] == 0) continue;
    const double weight = rows.weight[row];
    const double importance = rows.importance_weight == nullptr ? 1 : rows.importance_weight[row];
    const TokenLoss policy = PolicyLoss(options, rows, row, sequence_log_ratios[static_cast<size_t>(row)]);
    sums[kSumPg] += weight * importance * policy.value;
    sums[kSumClipped] += policy.clipped ? 1 : 0;
    sums[kSumClippedLower] += policy.clipped_lower ? 1 : 0;
    sums[kSumNegLogRatio] += NegativeLogRatio(options, rows, row);
    sums[kSumTokens] += 1;
    dlog_prob[row] = weight * importance * policy.gradient;
    if (options.kl_type != KlType::kNone) {
      const TokenLoss kl = KlLoss(options, rows.ref_log_prob[row] - rows.log_prob[row]);
      sums[kSumKl] += weight * kl.value;
      dlog_prob[row] += weight * options.kl_coef * kl.gradient;
    }
    if (rows.entropy != nullptr) {
      sums[kSumEntropy] += weight * rows.entropy[row];
      sums[kSumPlainEntropy] += rows.entropy[row];
    }
    if (dentropy != nullptr) dentropy[row] = -options.entropy_coeff * weight;
  }
}

}  // namespace stemma::worker
