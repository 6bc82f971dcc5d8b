// The loss of one row: value, derivatives and its share of the sums. One source for the CPU's loop and CUDA's kernel.
//
// Called by worker/backend/cpu/loss.cc and worker/backend/cuda/kernels/loss.h. Formulas with their clamps:
// docs/losses.md. Free of LibTorch; no state.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "common/trace/loss_names.h"
#include "worker/backend/device_code.h"

namespace stemma::worker {

inline constexpr double kLogRatioBound = 20;       // of d = lp - lo, token-level modes
inline constexpr double kSequenceRatioBound = 10;  // of gspo's s, above only
inline constexpr double kKlExponentBound = 20;
inline constexpr double kKlValueBound = 10;

// LossOptions (worker/backend/kernels.h) as plain data that a kernel takes by value.
struct LossRowOptions {
  LossMode mode;
  bool needs_old;  // NeedsOldLogProbs(mode)
  double clip_low, clip_high;
  bool dual_clip;
  double clip_c;  // with dual_clip
  double kl_coef;
  KlType kl_type;
  bool kl_straight_through;
  double entropy_coeff;
};

// Makes them of LossOptions.
template <typename Options>
LossRowOptions LossRowOptionsOf(const Options& options) {
  return {.mode = options.mode,
          .needs_old = NeedsOldLogProbs(options.mode),
          .clip_low = options.clip_low,
          .clip_high = options.clip_high,
          .dual_clip = options.clip_c.has_value(),
          .clip_c = options.clip_c.value_or(0),
          .kl_coef = options.kl_coef,
          .kl_type = options.kl_type,
          .kl_straight_through = options.kl_straight_through,
          .entropy_coeff = options.entropy_coeff};
}

// Arrays of rows; null where LossRows or LossOperands has no such tensor. On policy old_log_prob is log_prob.
struct LossRowData {
  const double *old_log_prob, *ref_log_prob, *advantage, *importance_weight, *loss_weight, *weight, *mask;
  const double *log_prob, *entropy;
  double *dlog_prob, *dentropy;  // written
  int64_t count;
};

// What the formulas read of one row; 0 where the mode has no such array.
struct LossRow {
  double old_log_prob, ref_log_prob, advantage, importance_weight, loss_weight, weight, mask, log_prob, entropy;
};

// Reads all before the first branch: a device waits for its memory once, not for the mask and then for the rest.
STEMMA_DEVICE LossRow ReadLossRow(const LossRowData& rows, int64_t row) {
  const auto read = [row](const double* array, double absent) { return array == nullptr ? absent : array[row]; };
  return {.old_log_prob = read(rows.old_log_prob, 0),
          .ref_log_prob = read(rows.ref_log_prob, 0),
          .advantage = read(rows.advantage, 0),
          .importance_weight = read(rows.importance_weight, 1),
          .loss_weight = read(rows.loss_weight, 0),
          .weight = rows.weight[row],
          .mask = rows.mask[row],
          .log_prob = rows.log_prob[row],
          .entropy = read(rows.entropy, 0)};
}

// In the order of LossOperands::sums, without padding.
struct LossRowSums {
  double pg, kl, entropy, clipped, clipped_lower, neg_log_ratio, tokens, plain_entropy;
};

// A loss's value and its derivative with respect to the token's log-prob.
struct TokenLoss {
  double value = 0;
  double gradient = 0;
  bool clipped = false;
  bool clipped_lower = false;
};

// Takes its bound by value: a device has no address of a constant of the host's.
STEMMA_DEVICE double Within(double x, double bound) { return std::clamp(x, -bound, bound); }

STEMMA_DEVICE double ClipRatio(const LossRowOptions& options, double ratio) {
  return std::clamp(ratio, 1 - options.clip_low, 1 + options.clip_high);
}

// Returns max(-A·r, -A·clip(r)): inside the interval and on its bounds the gradient is whole, beyond the active bound
// it is 0.
STEMMA_DEVICE TokenLoss ClippedSurrogate(const LossRowOptions& options, double advantage, double ratio) {
  const double plain = -advantage * ratio;
  const double bounded = -advantage * ClipRatio(options, ratio);
  const bool clipped = bounded > plain;
  return {.value = std::max(plain, bounded), .gradient = clipped ? 0 : plain, .clipped = clipped};
}

STEMMA_DEVICE TokenLoss VanillaLoss(const LossRowOptions& options, double advantage, double log_ratio) {
  const double ratio = std::exp(Within(log_ratio, kLogRatioBound));
  TokenLoss loss = ClippedSurrogate(options, advantage, ratio);
  if (options.dual_clip && advantage < 0) {
    const double bound = -advantage * options.clip_c;
    if (loss.value > bound) {
      loss.value = bound;
      loss.gradient = 0;
      loss.clipped_lower = true;
    }
  }
  if (std::abs(log_ratio) > kLogRatioBound) loss.gradient = 0;
  return loss;
}

// Takes the mean log-ratio of the row's rollout.
STEMMA_DEVICE TokenLoss GspoLoss(const LossRowOptions& options, double advantage, double log_ratio) {
  const double ratio = std::exp(std::min(log_ratio, +kSequenceRatioBound));
  TokenLoss loss = ClippedSurrogate(options, advantage, ratio);
  if (log_ratio > kSequenceRatioBound) loss.gradient = 0;
  return loss;
}

STEMMA_DEVICE TokenLoss CispoLoss(const LossRowOptions& options, double advantage, double log_ratio, double log_prob) {
  const double ratio = std::exp(Within(log_ratio, kLogRatioBound));
  const double bounded = ClipRatio(options, ratio);
  return {.value = -bounded * advantage * log_prob, .gradient = -bounded * advantage, .clipped = bounded != ratio};
}

STEMMA_DEVICE TokenLoss ImportanceSamplingLoss(double advantage, double log_ratio) {
  const double value = -std::exp(Within(log_ratio, kLogRatioBound)) * advantage;
  return {.value = value, .gradient = std::abs(log_ratio) > kLogRatioBound ? 0 : value};
}

STEMMA_DEVICE TokenLoss PolicyLoss(const LossRowOptions& options, const LossRow& row, double sequence_log_ratio) {
  const double log_ratio = options.needs_old ? row.log_prob - row.old_log_prob : 0;
  switch (options.mode) {
    case LossMode::kVanilla:
      return VanillaLoss(options, row.advantage, log_ratio);
    case LossMode::kGspo:
      return GspoLoss(options, row.advantage, sequence_log_ratio);
    case LossMode::kCispo:
      return CispoLoss(options, row.advantage, log_ratio, row.log_prob);
    case LossMode::kImportanceSampling:
      return ImportanceSamplingLoss(row.advantage, log_ratio);
    case LossMode::kCrossEntropy:
      return {.value = -row.loss_weight * row.log_prob, .gradient = -row.loss_weight};
    case LossMode::kGpg:
      return {.value = -row.advantage * row.log_prob, .gradient = -row.advantage};
  }
  return {};
}

STEMMA_DEVICE TokenLoss LowVarianceKl(double x) {
  const double y = Within(x, kKlExponentBound);
  const double value = std::exp(y) - y - 1;
  const bool bounded = value > kKlValueBound;
  return {.value = bounded ? kKlValueBound : value, .gradient = bounded ? 0 : 1 - std::exp(y)};
}

// Takes x = ref - log_prob.
STEMMA_DEVICE TokenLoss KlLoss(const LossRowOptions& options, double x) {
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

STEMMA_DEVICE double NegativeLogRatio(const LossRowOptions& options, const LossRow& row) {
  if (!options.needs_old) return 0;
  const double value = row.old_log_prob - row.log_prob;
  return options.mode == LossMode::kGspo ? value : Within(value, kLogRatioBound);
}

// Writes the derivatives of row `index` and adds its terms to `sums`. `sequence_log_ratio`: the mean log-ratio of the
// row's rollout, read by gspo only.
STEMMA_DEVICE void AddLossOfRow(const LossRowOptions& options, const LossRowData& rows, int64_t index,
                                double sequence_log_ratio, LossRowSums& sums) {
  const LossRow row = ReadLossRow(rows, index);
  double dlog_prob = 0, dentropy = 0;
  if (row.mask != 0) {
    const TokenLoss policy = PolicyLoss(options, row, sequence_log_ratio);
    sums.pg += row.weight * row.importance_weight * policy.value;
    sums.clipped += policy.clipped ? 1 : 0;
    sums.clipped_lower += policy.clipped_lower ? 1 : 0;
    sums.neg_log_ratio += NegativeLogRatio(options, row);
    sums.tokens += 1;
    dlog_prob = row.weight * row.importance_weight * policy.gradient;
    if (options.kl_type != KlType::kNone) {
      const TokenLoss kl = KlLoss(options, row.ref_log_prob - row.log_prob);
      sums.kl += row.weight * kl.value;
      dlog_prob += row.weight * options.kl_coef * kl.gradient;
    }
    if (rows.entropy != nullptr) {
      sums.entropy += row.weight * row.entropy;
      sums.plain_entropy += row.entropy;
    }
    dentropy = -options.entropy_coeff * row.weight;
  }
  rows.dlog_prob[index] = dlog_prob;
  if (rows.dentropy != nullptr) rows.dentropy[index] = dentropy;
}

}  // namespace stemma::worker
