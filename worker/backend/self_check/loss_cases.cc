// The loss of rows: each mode, each KL term, masked rows, log-ratios beyond every clamp.
#include <ATen/ATen.h>

#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/trace/loss_names.h"
#include "worker/backend/self_check/cases.h"

namespace stemma::worker::self_check {
namespace {

struct LossCase {
  std::string name;
  LossOptions options;
  bool on_policy = false;
  bool importance = false;
  bool entropy = false;
};

LossCase ModeCase(std::string name, LossMode mode) {
  LossCase c{.name = std::move(name), .options = {}};
  c.options.mode = mode;
  c.options.clip_low = 0.2;
  c.options.clip_high = 0.28;
  return c;
}

LossCase KlCase(std::string name, KlType type, bool straight_through) {
  LossCase c = ModeCase(std::move(name), LossMode::kVanilla);
  c.options.kl_type = type;
  c.options.kl_straight_through = straight_through;
  c.options.kl_coef = 0.1;
  c.entropy = straight_through;
  c.options.entropy_coeff = 0.01;
  return c;
}

std::vector<LossCase> AllModes() {
  std::vector<LossCase> all;
  for (const std::string_view name : LossModeNames()) all.push_back(ModeCase(std::string(name), *ParseLossMode(name)));
  all.push_back(KlCase("kl", KlType::kK1, false));
  all.push_back(KlCase("abs", KlType::kAbs, true));
  all.push_back(KlCase("k2", KlType::kK2, false));
  all.push_back(KlCase("low_var_kl", KlType::kK3, false));
  all.push_back(KlCase("low_var_kl+", KlType::kK3, true));
  LossCase dual = ModeCase("vanilla with dual clip", LossMode::kVanilla);
  dual.options.clip_c = 3;
  dual.importance = true;
  LossCase on_policy = ModeCase("vanilla on policy", LossMode::kVanilla);
  on_policy.on_policy = true;
  on_policy.entropy = true;
  all.push_back(dual);
  all.push_back(on_policy);
  return all;
}

// Every third row is masked and holds NaN in all that a masked row may hold anything in; a single row is not.
at::Tensor Mask(int64_t rows) {
  const at::Tensor index = at::arange(rows, at::kLong);
  return rows == 1 ? at::ones({1}, at::kDouble) : (index.remainder(3) != 1).to(at::kDouble);
}

// Rollouts of 1, 2, 3, … rows, numbered from 5.
at::Tensor Rollouts(int64_t rows) {
  at::Tensor rollouts = at::empty({rows}, at::kLong);
  int64_t number = 5;
  for (int64_t begin = 0, length = 1; begin < rows; begin += length++) {
    rollouts.slice(0, begin, begin + length).fill_(number++);
  }
  return rollouts;
}

// A row in five is far away.
at::Tensor NearTo(const at::Tensor& log_prob, Operands& operands) {
  const at::Tensor is_far = at::arange(log_prob.numel(), at::kLong).remainder(5) == 3;
  const at::Tensor offset = operands.Draw({log_prob.numel()});
  return log_prob + at::where(is_far, offset * 25, offset * 0.3);
}

void RunLoss(const Side& side, Operands& operands, const LossCase& c, int64_t count) {
  const at::Tensor mask = Mask(count), log_prob_values = -operands.Draw({count}).abs();
  const at::Tensor is_masked = mask == 0;
  const auto given = [&](const at::Tensor& values) {
    return operands.Given(values.masked_fill(is_masked, std::numeric_limits<double>::quiet_NaN()), Numbers::kRows);
  };
  const LossModeRequirements reads = RequirementsOf(c.options.mode);
  LossRows rows;
  rows.mask_T = operands.Given(mask, Numbers::kRows);
  rows.weight_T = operands.Given((operands.Draw({count}).abs() + 0.1) * mask, Numbers::kRows);
  if (reads.needs_old && !c.on_policy) rows.old_log_prob_T = given(NearTo(log_prob_values, operands));
  if (c.options.kl_type != KlType::kNone) rows.ref_log_prob_T = given(NearTo(log_prob_values, operands));
  if (reads.needs_advantage) rows.advantage_T = given(operands.Draw({count}) * 2);
  if (reads.needs_loss_weights) rows.loss_weight_T = given(operands.Draw({count}));
  if (c.importance) rows.importance_weight_T = given(operands.Draw({count}).abs());
  if (reads.needs_whole_rollouts) rows.rollout_T = operands.GivenIntegers(Rollouts(count));
  const at::Tensor log_prob = given(log_prob_values);
  at::Tensor entropy, dentropy;
  if (c.entropy) {
    entropy = given(operands.Draw({count}).abs());
    dentropy = operands.Written("dentropy_T", {count}, Numbers::kRows);
  }
  const at::Tensor dlog_prob = operands.Written("dlog_prob_T", {count}, Numbers::kRows);
  const at::Tensor sums = operands.AddedTo("sums", {kNumLossSums}, Numbers::kRows);
  side.kernels.loss({.options = c.options,
                     .rows = rows,
                     .log_prob_T = log_prob,
                     .entropy_T = entropy,
                     .dlog_prob_T = dlog_prob,
                     .dentropy_T = dentropy,
                     .sums = sums});
}

}  // namespace

std::vector<Case> LossCases(const CheckShape&) {
  std::vector<Case> cases;
  for (const LossCase& c : AllModes()) {
    for (const int64_t rows : {1, 37, 1200}) {
      cases.push_back({absl::StrCat(c.name, " of ", rows, " rows"),
                       [c, rows](const Side& side, Operands& operands) { RunLoss(side, operands, c, rows); }});
    }
  }
  return cases;
}

}  // namespace stemma::worker::self_check
