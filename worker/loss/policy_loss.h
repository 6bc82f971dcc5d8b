// Policy losses, KL estimators and their gradients with respect to a token's log-prob: pure functions in double, free
// of LibTorch. Called by the engine from the head's RowGradient. Formulas with their clamps: docs/losses.md.
//
// The loss of a step is  sum over tokens of  weight · (W · pg + kl_coef · kl - entropy_coeff · H), where W is the
// token's rollout_is_weights and weight = mask · w / D is given by the caller (worker/loss/aggregation.h), so the
// result does not depend on waves. A masked token contributes nothing and its gradients are 0, whatever its numbers
// are.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "common/trace/loss_names.h"

namespace stemma::worker {

struct LossOptions {
  LossMode mode = LossMode::kVanilla;
  double clip_low = 0, clip_high = 0;
  std::optional<double> clip_c = std::nullopt;  // dual clip
  double kl_coef = 0;
  KlType kl_type = KlType::kNone;
  bool kl_straight_through = false;  // the `+` types: value as named, gradient -x
  double entropy_coeff = 0;
};

// One rollout's tokens (or some of them, unless the mode needs whole rollouts). Spans have one length; those that the
// mode does not read are empty.
struct LossTokens {
  std::span<const double> old_log_prob;  // on policy: the log-probs themselves, no gradient flows through them
  std::span<const double> ref_log_prob;  // empty: no KL
  std::span<const double> advantage;
  std::span<const double> importance_weight;  // rollout_is_weights; empty: ones
  std::span<const double> loss_weight;        // cross_entropy
  std::span<const double> weight;             // mask · w / D of the aggregation; 0 where masked
  std::span<const uint8_t> mask;
};

// Sums over unmasked tokens. pg (times rollout_is_weights), kl and entropy are already weighted (weight) but without
// their coefficients; the rest are plain sums.
struct LossSums {
  double pg = 0, kl = 0, entropy = 0;
  double clipped = 0, clipped_lower = 0;  // counts: the clip (cispo: r != clip(r)), the dual clip
  double neg_log_ratio = 0;               // sum of old - new, clamped where the mode clamps it: ppo_kl
  double tokens = 0;
  double plain_entropy = 0;  // without weights
  LossSums& operator+=(const LossSums& other);
};

// Writes dL/dlog_prob (and dL/dentropy = -entropy_coeff · weight, where `dentropy` is not empty) and adds to sums.
void LossGradient(const LossOptions& options, const LossTokens& tokens, std::span<const double> log_prob,
                  std::span<const double> entropy, std::span<double> dlog_prob, std::span<double> dentropy,
                  LossSums& sums);

}  // namespace stemma::worker
