// The loss: every mode with every KL term, as the seed has it.
#include <ATen/ATen.h>

#include <limits>

#include "common/trace/loss_names.h"
#include "tests/worker/backend/cuda/kernels/kernel_cases.h"

namespace stemma::testing {
namespace {

LossOptions DrawOptions(Drawn& drawn) {
  const auto num_modes = static_cast<int64_t>(LossModeNames().size());
  LossOptions options{.mode = static_cast<LossMode>(drawn.Size(0, num_modes - 1)), .clip_low = 0.2, .clip_high = 0.28};
  if (drawn.Coin()) options.clip_c = 1.5;
  options.kl_type = static_cast<KlType>(drawn.Size(0, 4));
  options.kl_coef = 0.1;
  options.kl_straight_through = drawn.Coin();
  options.entropy_coeff = 0.01;
  return options;
}

// Whole rollouts, numbered upwards from any number.
at::Tensor DrawRollouts(Drawn& drawn, int64_t rows) {
  std::vector<int64_t> rollouts;
  for (int64_t rollout = drawn.Size(0, 9); static_cast<int64_t>(rollouts.size()) < rows; ++rollout) {
    for (int64_t n = drawn.Size(1, 40); n > 0 && static_cast<int64_t>(rollouts.size()) < rows; --n) {
      rollouts.push_back(rollout);
    }
  }
  return drawn.Place(at::tensor(rollouts, at::kLong));
}

}  // namespace

Outputs LossCase(const Tables& tables, at::ScalarType, Drawn drawn) {
  const LossOptions options = DrawOptions(drawn);
  const int64_t rows = 30 * drawn.Rows();
  const auto normal = [&](double scale) { return drawn.Normal({rows}, at::kDouble).mul_(scale); };
  const at::Tensor log_prob = normal(1), entropy = normal(1);
  const at::Tensor dlog_prob = drawn.Unwritten({rows}, at::kDouble), dentropy = drawn.Unwritten({rows}, at::kDouble);
  LossRows in;
  if (drawn.Coin()) in.old_log_prob_T = normal(1);
  in.ref_log_prob_T = normal(1);
  in.advantage_T = normal(1);
  if (drawn.Coin()) in.importance_weight_T = normal(1).abs();
  in.loss_weight_T = normal(1);
  in.weight_T = normal(1).abs();
  in.mask_T = drawn.Place(at::rand({rows}, at::kDouble).gt(0.2).to(at::kDouble));
  in.rollout_T = DrawRollouts(drawn, rows);
  // A row that is masked contributes nothing whatever its numbers are; far ratios are cut off.
  log_prob.masked_fill_(in.mask_T == 0, std::numeric_limits<double>::quiet_NaN());
  if (rows > 0) log_prob[rows - 1] = 30;
  const bool with_entropy = drawn.Coin();
  const at::Tensor none, sums = drawn.Ones({kNumLossSums}, at::kDouble);
  tables.kernels.loss({.options = options,
                       .rows = in,
                       .log_prob_T = log_prob,
                       .entropy_T = with_entropy ? entropy : none,
                       .dlog_prob_T = dlog_prob,
                       .dentropy_T = with_entropy ? dentropy : none,
                       .sums = sums});
  return with_entropy ? Outputs{dlog_prob, sums, dentropy} : Outputs{dlog_prob, sums};
}

}  // namespace stemma::testing
