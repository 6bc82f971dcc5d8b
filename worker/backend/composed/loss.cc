// The loss of rows in ATen ops: the same values and gradients as the CPU's loops, by selection instead of branches.
// Formulas with their clamps: docs/losses.md.
#include <ATen/ATen.h>
#include <glog/logging.h>

#include "worker/backend/composed/composed_kernels.h"

namespace stemma::worker::composed {
namespace {

constexpr double kLogRatioBound = 20;       // of d = lp - lo, token-level modes
constexpr double kSequenceRatioBound = 10;  // of gspo's s, above only
constexpr double kKlExponentBound = 20;
constexpr double kKlValueBound = 10;

// A term's value and its derivative with respect to the row's log-prob; which rows its clips changed.
struct Term {
  at::Tensor value, gradient;
  at::Tensor clipped, clipped_lower;  // bool; undefined: none
};

at::Tensor Zeros(const at::Tensor& x) { return at::zeros_like(x); }

at::Tensor ZeroWhere(const at::Tensor& condition, const at::Tensor& x) { return at::where(condition, Zeros(x), x); }

at::Tensor Clip(const LossOptions& options, const at::Tensor& ratio) {
  return at::clamp(ratio, 1 - options.clip_low, 1 + options.clip_high);
}

at::Tensor Ratio(const at::Tensor& log_ratio) { return at::exp(at::clamp(log_ratio, -kLogRatioBound, kLogRatioBound)); }

// max(-A·r, -A·clip(r)).
Term ClippedSurrogate(const LossOptions& options, const at::Tensor& advantage, const at::Tensor& ratio) {
  const at::Tensor plain = -advantage * ratio, bounded = -advantage * Clip(options, ratio);
  const at::Tensor clipped = bounded > plain;
  return {at::where(clipped, bounded, plain), ZeroWhere(clipped, plain), clipped, {}};
}

Term Vanilla(const LossOptions& options, const at::Tensor& advantage, const at::Tensor& log_ratio) {
  Term term = ClippedSurrogate(options, advantage, Ratio(log_ratio));
  if (options.clip_c.has_value()) {
    const at::Tensor bound = -advantage * *options.clip_c;
    term.clipped_lower = at::logical_and(advantage<0, term.value> bound);
    term.value = at::where(term.clipped_lower, bound, term.value);
    term.gradient = ZeroWhere(term.clipped_lower, term.gradient);
  }
  term.gradient = ZeroWhere(at::abs(log_ratio) > kLogRatioBound, term.gradient);
  return term;
}

Term Gspo(const LossOptions& options, const at::Tensor& advantage, const at::Tensor& sequence_log_ratio) {
  Term term = ClippedSurrogate(options, advantage, at::exp(at::clamp_max(sequence_log_ratio, kSequenceRatioBound)));
  term.gradient = ZeroWhere(sequence_log_ratio > kSequenceRatioBound, term.gradient);
  return term;
}

// The mean log-ratio of each row's rollout. Rollouts are numbered upwards from the first row's number, and there are no
// more of them than rows.
at::Tensor SequenceLogRatio(const LossRows& rows, const at::Tensor& log_ratio) {
  const at::Tensor rollout = rows.rollout_T - rows.rollout_T.narrow(0, 0, 1);
  const at::Tensor sums = Zeros(log_ratio).index_add_(0, rollout, ZeroWhere(rows.mask_T == 0, log_ratio));
  const at::Tensor counts = Zeros(log_ratio).index_add_(0, rollout, rows.mask_T);
  return (sums / at::clamp_min(counts, 1.0)).index_select(0, rollout);
}

Term PolicyTerm(const LossOptions& options, const LossRows& rows, const at::Tensor& log_prob,
                const at::Tensor& log_ratio) {
  switch (options.mode) {
    case LossMode::kVanilla:
      return Vanilla(options, rows.advantage_T, log_ratio);
    case LossMode::kGspo:
      return Gspo(options, rows.advantage_T, SequenceLogRatio(rows, log_ratio));
    case LossMode::kCispo: {
      const at::Tensor ratio = Ratio(log_ratio), bounded = Clip(options, ratio);
      return {-bounded * rows.advantage_T * log_prob, -bounded * rows.advantage_T, bounded != ratio, {}};
    }
    case LossMode::kImportanceSampling: {
      const at::Tensor value = -Ratio(log_ratio) * rows.advantage_T;
      return {value, ZeroWhere(at::abs(log_ratio) > kLogRatioBound, value), {}, {}};
    }
    case LossMode::kCrossEntropy:
      return {-rows.loss_weight_T * log_prob, -rows.loss_weight_T, {}, {}};
    case LossMode::kGpg:
      return {-rows.advantage_T * log_prob, -rows.advantage_T, {}, {}};
  }
  LOG(FATAL) << "loss mode " << static_cast<int>(options.mode);
}

Term LowVarianceKl(const at::Tensor& x) {
  const at::Tensor y = at::clamp(x, -kKlExponentBound, kKlExponentBound), e = at::exp(y);
  const at::Tensor value = e - y - 1, bounded = value > kKlValueBound;
  return {at::where(bounded, at::full_like(value, kKlValueBound), value), ZeroWhere(bounded, 1 - e), {}, {}};
}

// x = ref - log_prob.
Term KlTerm(const LossOptions& options, const at::Tensor& x) {
  Term term;
  switch (options.kl_type) {
    case KlType::kNone:
      LOG(FATAL) << "no KL term";
    case KlType::kK1:
      term = {-x, at::ones_like(x), {}, {}};
      break;
    case KlType::kAbs:
      term = {at::abs(x), -at::sign(x), {}, {}};
      break;
    case KlType::kK2:
      term = {x * x / 2, -x, {}, {}};
      break;
    case KlType::kK3:
      term = LowVarianceKl(x);
      break;
  }
  if (options.kl_straight_through) term.gradient = -x;
  return term;
}

// Adds to sums; rows of 0 in `mask` count nothing, whatever they hold.
class Sums {
 public:
  Sums(const at::Tensor& sums, const at::Tensor& masked) : sums_(sums), masked_(masked) {}
  void Add(LossSum which, const at::Tensor& rows) {
    if (!rows.defined()) return;
    sums_.select(0, which).add_(ZeroWhere(masked_, rows.to(sums_.scalar_type())).sum());
  }

 private:
  const at::Tensor& sums_;
  const at::Tensor& masked_;
};

}  // namespace

void Loss(const LossOperands& args) {
  const LossOptions& options = args.options;
  const LossRows& rows = args.rows;
  const at::Tensor masked = rows.mask_T == 0;
  const at::Tensor log_prob = args.log_prob_T;
  const at::Tensor log_ratio = rows.old_log_prob_T.defined() ? log_prob - rows.old_log_prob_T : log_prob - log_prob;
  const at::Tensor factor =
      rows.importance_weight_T.defined() ? rows.weight_T * rows.importance_weight_T : rows.weight_T;
  const Term policy = PolicyTerm(options, rows, log_prob, log_ratio);
  Sums sums(args.sums, masked);
  sums.Add(kSumPg, factor * policy.value);
  sums.Add(kSumClipped, policy.clipped);
  sums.Add(kSumClippedLower, policy.clipped_lower);
  sums.Add(kSumTokens, rows.mask_T);
  if (NeedsOldLogProbs(options.mode)) {
    const at::Tensor negative = -log_ratio;
    sums.Add(kSumNegLogRatio,
             options.mode == LossMode::kGspo ? negative : at::clamp(negative, -kLogRatioBound, kLogRatioBound));
  }
  at::Tensor gradient = factor * policy.gradient;
  if (options.kl_type != KlType::kNone) {
    const Term kl = KlTerm(options, rows.ref_log_prob_T - log_prob);
    sums.Add(kSumKl, rows.weight_T * kl.value);
    gradient = gradient + rows.weight_T * options.kl_coef * kl.gradient;
  }
  args.dlog_prob_T.copy_(ZeroWhere(masked, gradient));
  if (args.entropy_T.defined()) {
    sums.Add(kSumEntropy, rows.weight_T * args.entropy_T);
    sums.Add(kSumPlainEntropy, args.entropy_T);
  }
  if (args.dentropy_T.defined()) args.dentropy_T.copy_(ZeroWhere(masked, rows.weight_T * -options.entropy_coeff));
}

}  // namespace stemma::worker::composed
