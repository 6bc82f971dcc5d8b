// The rows that a wave's loss reads: each member's numbers at its rows, cut where the head cuts.
#include "worker/loss/wave_loss.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <vector>

#include "common/base/arrays.h"
#include "tests/testing/backends.h"

namespace stemma::worker {
namespace {

using testing::TestBackend;

// The rows and sizes of one call of the loss, recorded in place of a loss.
struct Recorded {
  LossRows rows;
  int64_t count = 0;
};
Recorded recorded;
void Record(const LossOperands& args) { recorded = {args.rows, args.log_prob_T.numel()}; }

v1::Rollout RolloutOf(const std::vector<float>& old, double advantage, const std::vector<bool>& mask = {}) {
  v1::Rollout rollout;
  rollout.set_response_tokens(PackArray(std::vector<int32_t>(old.size(), 1)));
  rollout.set_old_log_probs(PackArray(old));
  rollout.set_advantage(advantage);
  if (!mask.empty()) rollout.set_response_mask(PackMask(mask));
  return rollout;
}

LossRows RowsOf(const LossPlan& plan, const std::vector<LossMember>& members, RowRange range) {
  Backend backend = TestBackend();
  backend.kernels.loss = Record;
  WaveLoss loss(plan, backend, members);
  const at::Tensor log_prob = at::zeros({range.rows()}, at::kDouble);
  loss.gradient()(range, log_prob, {}, at::zeros_like(log_prob), {});
  EXPECT_EQ(recorded.count, range.rows());
  return recorded.rows;
}

bool Holds(const at::Tensor& actual, const std::vector<double>& expected) {
  return actual.defined() && actual.to(at::kDouble).equal(at::tensor(expected, at::kDouble));
}

TEST(WaveLossTest, EachMembersNumbersStandAtItsRows) {
  const v1::Rollout first = RolloutOf({-1, -2}, 0.5), second = RolloutOf({-3, -4, -5}, -0.25, {true, false, true});
  LossPlan plan;
  plan.options.mode = LossMode::kGspo;
  plan.old_from = v1::LogProbSource::CLIENT;
  const std::vector<LossMember> members = {{&first, 0.125}, {&second, 2}};
  const LossRows all = RowsOf(plan, members, {0, 5});
  EXPECT_TRUE(Holds(all.old_log_prob_T, {-1, -2, -3, -4, -5}));
  EXPECT_TRUE(Holds(all.advantage_T, {0.5, 0.5, -0.25, -0.25, -0.25}));
  EXPECT_TRUE(Holds(all.mask_T, {1, 1, 1, 0, 1}));
  EXPECT_TRUE(Holds(all.weight_T, {0.125, 0.125, 2, 0, 2}));
  EXPECT_TRUE(Holds(all.rollout_T, {0, 0, 1, 1, 1}));
  EXPECT_FALSE(all.ref_log_prob_T.defined() || all.importance_weight_T.defined() || all.loss_weight_T.defined());
  const LossRows part = RowsOf(plan, members, {1, 4});
  EXPECT_TRUE(Holds(part.old_log_prob_T, {-2, -3, -4}));
  EXPECT_TRUE(Holds(part.rollout_T, {0, 1, 1}));
}

TEST(WaveLossTest, OnPolicyHasNoOldLogProbsAndEntryWeightsHaveTheirs) {
  const v1::Rollout rollout = RolloutOf({-1, -2}, 1);
  const std::vector<double> old = {-7, -8}, ref = {-9, -10};
  const std::vector<LossMember> members = {{&rollout, 1, &old, &ref}};
  LossPlan plan;
  plan.old_from = v1::LogProbSource::ON_POLICY;
  EXPECT_FALSE(RowsOf(plan, members, {0, 2}).old_log_prob_T.defined());
  plan.old_from = v1::LogProbSource::WEIGHTS;
  EXPECT_TRUE(Holds(RowsOf(plan, members, {0, 2}).old_log_prob_T, {-7, -8}));
  EXPECT_FALSE(RowsOf(plan, members, {0, 2}).ref_log_prob_T.defined());
  plan.ref_from = v1::LogProbSource::WEIGHTS;
  EXPECT_TRUE(Holds(RowsOf(plan, members, {0, 2}).old_log_prob_T, {-7, -8}));
  EXPECT_TRUE(Holds(RowsOf(plan, members, {0, 2}).ref_log_prob_T, {-9, -10}));
}

// Gives each row gradients of its own.
void NumberRows(const LossOperands& args) {
  const at::Tensor numbers = at::arange(args.log_prob_T.numel(), at::kDouble);
  args.dlog_prob_T.copy_(numbers + 1);
  args.dentropy_T.copy_(numbers + 101);
  args.sums.add_(1);
}

// A ratio of the whole rollout: the loss sees all rows, and a rank takes both gradients of its own. One counts the
// sums.
TEST(WaveLossTest, ARankOfASharedRolloutTakesItsOwnRowsGradients) {
  const v1::Rollout rollout = RolloutOf({-1, -2, -3, -4}, 1);
  LossPlan plan;
  plan.options.mode = LossMode::kGspo;
  plan.old_from = v1::LogProbSource::CLIENT;
  Backend backend = TestBackend();
  backend.kernels.loss = NumberRows;
  for (const bool is_first : {true, false}) {
    const SharedRows shared{.is_first = is_first,
                            .own = [](const at::Tensor& x_T) { return x_T.narrow(0, 1, 2); },
                            .gather =
                                [](const HeadOutput&) {
                                  return HeadOutput{at::zeros({4}, at::kDouble), at::zeros({4}, at::kDouble)};
                                }};
    WaveLoss loss(plan, backend, {{&rollout, 1}}, &shared);
    const at::Tensor numbers = at::zeros({2}, at::kDouble), dlog_prob = at::empty_like(numbers);
    const at::Tensor dentropy = at::empty_like(numbers);
    loss.gradient()({0, 2}, numbers, numbers, dlog_prob, dentropy);
    EXPECT_TRUE(Holds(dlog_prob, {2, 3}));
    EXPECT_TRUE(Holds(dentropy, {102, 103}));
    EXPECT_EQ(loss.sums().sum().item<double>(), is_first ? kNumLossSums : 0);
  }
}

TEST(WaveLossTest, AMemberWithoutImportanceWeightsBesideOneThatSendsThemHasOnes) {
  const v1::Rollout plain = RolloutOf({-1}, 1);
  v1::Rollout weighted = RolloutOf({-1, -1}, 1);
  weighted.set_rollout_is_weights(PackArray(std::vector<float>{2, 3}));
  LossPlan plan;
  plan.old_from = v1::LogProbSource::CLIENT;
  EXPECT_TRUE(Holds(RowsOf(plan, {{&plain, 1}, {&weighted, 1}}, {0, 3}).importance_weight_T, {1, 2, 3}));
}

}  // namespace
}  // namespace stemma::worker
