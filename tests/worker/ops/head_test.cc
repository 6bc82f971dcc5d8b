// The head against fp64 autograd of log_softmax, gather and entropy on whole logits; chunks of every kind; fp32 and
// bf16 against fp64; what is skipped; controls with a term dropped.
#include "worker/ops/head.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "tests/testing/backends.h"
#include "tests/testing/tensors.h"
#include "tests/worker/ops/ranks.h"
#include "worker/memory/cpu_allocator.h"

namespace stemma::worker {
namespace {

using testing::kExact;
using testing::RelativeError;

constexpr int64_t kRows = 37, kWidth = 24, kVocab = 1500;  // a vocabulary of one and a half blocks of the row kernel
constexpr double kTemperature = 0.7;

struct Inputs {
  at::Tensor hidden_TD, weight_VD;
  std::vector<int64_t> targets;
  std::vector<double> dlog_prob, dentropy;  // the loss is their inner product with log-prob and entropy

  at::Tensor targets_T() const { return at::tensor(targets, at::kLong); }
  at::Tensor dweight() const {
    return at::zeros(weight_VD.sizes(), weight_VD.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  }
};

std::vector<double> AsVector(const at::Tensor& tensor) {
  const at::Tensor dense = tensor.detach().to(at::kDouble).contiguous();
  return {dense.const_data_ptr<double>(), dense.const_data_ptr<double>() + dense.numel()};
}

at::Tensor AsTensor(const std::vector<double>& values) {
  return at::from_blob(const_cast<double*>(values.data()), {static_cast<int64_t>(values.size())}, at::kDouble).clone();
}

Inputs MakeInputs(at::ScalarType dtype = at::kDouble, int64_t rows = kRows, double scale = 1) {
  testing::Random random(11);
  Inputs inputs{
      random.Normal({rows, kWidth}).mul(scale).to(dtype), random.Normal({kVocab, kWidth}).to(dtype), {}, {}, {}};
  const at::Tensor targets = random.Integers(kVocab, rows);
  inputs.targets.assign(targets.const_data_ptr<int64_t>(), targets.const_data_ptr<int64_t>() + rows);
  inputs.dlog_prob = AsVector(random.Normal({rows}));
  inputs.dentropy = AsVector(random.Normal({rows}));
  return inputs;
}

struct Reference {
  at::Tensor log_prob, entropy, dhidden_TD, dweight_VD;
};

// What a test may leave out to see that its absence is seen.
struct Terms {
  double temperature = kTemperature;
  bool entropy = true;
};

Reference Autograd(const Inputs& inputs, const Terms& terms = {}) {
  const at::Tensor hidden = testing::Leaf(inputs.hidden_TD), weight = testing::Leaf(inputs.weight_VD);
  const at::Tensor log_p = at::log_softmax(at::mm(hidden, weight.t()) / terms.temperature, 1);
  const at::Tensor targets = at::from_blob(const_cast<int64_t*>(inputs.targets.data()),
                                           {static_cast<int64_t>(inputs.targets.size()), 1}, at::kLong);
  Reference reference{at::gather(log_p, 1, targets).squeeze(1), -(at::exp(log_p) * log_p).sum(1), {}, {}};
  const at::Tensor dentropy = AsTensor(inputs.dentropy) * (terms.entropy ? 1.0 : 0.0);
  const auto gradients = testing::AutogradOf({reference.log_prob, reference.entropy},
                                             {AsTensor(inputs.dlog_prob), dentropy}, {hidden, weight});
  reference.dhidden_TD = gradients[0];
  reference.dweight_VD = gradients[1];
  return reference;
}

// The loss whose gradients are given.
RowGradient Linear(const Inputs& inputs) {
  return [&](RowRange range, const at::Tensor&, const at::Tensor&, const at::Tensor& dlog_prob_T,
             const at::Tensor& dentropy_T) {
    dlog_prob_T.copy_(AsTensor(inputs.dlog_prob).narrow(0, range.begin, range.rows()));
    if (dentropy_T.defined()) dentropy_T.copy_(AsTensor(inputs.dentropy).narrow(0, range.begin, range.rows()));
  };
}

struct Outcome {
  HeadOutput output;
  at::Tensor dhidden_TD, dweight_VD;
};

Outcome RunHead(const Inputs& inputs, HeadOptions options, std::span<const RowRange> rollouts = {},
                const RowGradient* gradient = nullptr) {
  Outcome outcome;
  outcome.dweight_VD = inputs.dweight();
  options.whole_rollouts = !rollouts.empty();
  HeadBackwardResult result =
      HeadForwardBackward(testing::TestBackend(), {inputs.hidden_TD, inputs.weight_VD, inputs.targets_T(), rollouts},
                          options, gradient != nullptr ? *gradient : Linear(inputs), outcome.dweight_VD);
  outcome.output = std::move(result.output);
  outcome.dhidden_TD = result.dhidden_TD;
  return outcome;
}

HeadOptions Options(int64_t chunk_rows, bool need_entropy = true) {
  return {.temperature = kTemperature, .chunk_rows = chunk_rows, .need_entropy = need_entropy};
}

void ExpectClose(const Outcome& actual, const Reference& expected, double tolerance) {
  EXPECT_LE(RelativeError(actual.output.log_prob_T, expected.log_prob), tolerance);
  EXPECT_LE(RelativeError(actual.dhidden_TD, expected.dhidden_TD), tolerance);
  EXPECT_LE(RelativeError(actual.dweight_VD, expected.dweight_VD), tolerance);
  if (actual.output.entropy_T.defined()) {
    EXPECT_LE(RelativeError(actual.output.entropy_T, expected.entropy), tolerance);
  }
}

TEST(HeadTest, IsAutogradsForEveryChunkSize) {
  const Inputs inputs = MakeInputs();
  const Reference expected = Autograd(inputs);
  for (const int64_t chunk_rows : {1, 3, 36, 37, 512}) {
    SCOPED_TRACE(chunk_rows);
    ExpectClose(RunHead(inputs, Options(chunk_rows)), expected, kExact);
  }
}

TEST(HeadTest, WithoutEntropyNeitherItsValueNorItsGradientIsMade) {
  const Inputs inputs = MakeInputs();
  const Outcome outcome = RunHead(inputs, Options(16, /*need_entropy=*/false));
  EXPECT_FALSE(outcome.output.entropy_T.defined());
  ExpectClose(outcome, Autograd(inputs, {.entropy = false}), kExact);
}

TEST(HeadTest, ChunkBoundariesDoNotChangeTheResult) {
  const Inputs inputs = MakeInputs();
  const Outcome whole = RunHead(inputs, Options(512));
  const Reference expected{whole.output.log_prob_T, whole.output.entropy_T, whole.dhidden_TD, whole.dweight_VD};
  // Two orders of the same fp64 sums.
  for (const int64_t chunk_rows : {1, 3, 20}) ExpectClose(RunHead(inputs, Options(chunk_rows)), expected, 1e-13);
}

TEST(HeadTest, EntropyAloneHasAGradientToo) {
  Inputs inputs = MakeInputs();
  inputs.dlog_prob.assign(kRows, 0);
  const Reference expected = Autograd(inputs);
  for (const int64_t chunk_rows : {3, 512}) ExpectClose(RunHead(inputs, Options(chunk_rows)), expected, kExact);
}

// The pass before a step asks for no entropies, and is compared with the step's log-probs.
TEST(HeadTest, ForwardAloneGivesTheSameBits) {
  const Inputs inputs = MakeInputs();
  const at::Tensor targets_T = inputs.targets_T();
  for (const bool whole : {false, true}) {
    std::vector<RowRange> rollouts = {{0, 4}, {4, 25}, {25, 27}, {27, kRows}};  // some longer than a chunk
    if (!whole) rollouts.clear();
    HeadOptions options = Options(5);
    options.whole_rollouts = whole;
    const HeadInput input = {inputs.hidden_TD, inputs.weight_VD, targets_T, rollouts};
    const HeadOutput both = RunHead(inputs, options, rollouts).output,
                     forward = HeadForward(testing::TestBackend(), input, options);
    EXPECT_TRUE(forward.log_prob_T.equal(both.log_prob_T) && forward.entropy_T.equal(both.entropy_T));
    options.need_entropy = false;
    EXPECT_TRUE(HeadForward(testing::TestBackend(), input, options).log_prob_T.equal(both.log_prob_T));
  }
}

TEST(HeadTest, AddsToTheWeightGradient) {
  const Inputs inputs = MakeInputs();
  const Outcome once = RunHead(inputs, Options(8));
  HeadForwardBackward(testing::TestBackend(), {inputs.hidden_TD, inputs.weight_VD, inputs.targets_T()}, Options(8),
                      Linear(inputs), once.dweight_VD);
  EXPECT_LE(RelativeError(once.dweight_VD, Autograd(inputs).dweight_VD * 2), kExact);
}

TEST(HeadTest, LargeLogitsNeitherOverflowNorLoseTheirSum) {
  const Inputs inputs = MakeInputs(at::kDouble, kRows, /*scale=*/1000);
  // Logits of about 5000 carry an absolute error of 1e-12 into log-probs; entropies near 0 are compared absolutely.
  const Outcome actual = RunHead(inputs, Options(8));
  const Reference expected = Autograd(inputs);
  EXPECT_LE(RelativeError(actual.output.log_prob_T, expected.log_prob), kExact);
  EXPECT_LE((actual.output.entropy_T - expected.entropy).abs().max().item<double>(), 1e-10);
  EXPECT_LE(RelativeError(actual.dweight_VD, expected.dweight_VD), 1e-10);
}

TEST(HeadTest, NoRowsGiveNoResultAndNoGradient) {
  const Inputs inputs = MakeInputs(at::kDouble, 0);
  const Outcome outcome = RunHead(inputs, Options(8));
  EXPECT_EQ(outcome.output.log_prob_T.numel(), 0);
  EXPECT_EQ(outcome.dhidden_TD.size(0), 0);
  EXPECT_EQ(outcome.dweight_VD.abs().max().item<double>(), 0);
}

// ------------------------------------------------------------------------------------------------------ other dtypes

TEST(HeadTest, Fp32IsFp64ToItsRounding) {
  const Inputs inputs = MakeInputs(at::kFloat);
  for (const int64_t chunk_rows : {3, 512}) {
    // A logit is a sum of 24 products of size 1, scaled by 1/0.7: its error, about 20 · 6e-8, is that of the log-prob
    // and the relative error of a probability; values are of size 10, gradients sums of 1500 such.
    ExpectClose(RunHead(inputs, Options(chunk_rows)), Autograd(inputs), 5e-6);
  }
}

TEST(HeadTest, Bf16IsAnFp32HeadOnRoundedOperands) {
  const Inputs inputs = MakeInputs(at::kBFloat16);  // the reference upcasts the rounded operands
  const Outcome actual = RunHead(inputs, Options(16));
  const Reference expected = Autograd(inputs);
  EXPECT_LE(RelativeError(actual.output.log_prob_T, expected.log_prob), 5e-6);  // as fp32: products are exact
  EXPECT_LE(RelativeError(actual.dweight_VD, expected.dweight_VD), 5e-6);
  EXPECT_EQ(actual.dhidden_TD.scalar_type(), at::kBFloat16);
  EXPECT_LE(RelativeError(actual.dhidden_TD, expected.dhidden_TD), 1.0 / 256);  // stored in bf16: half an ulp is 2^-9
}

TEST(HeadTest, Bf16OfAVocabularyOfSeveralUpcastSlices) {
  testing::Random random(5);
  Inputs inputs{random.Normal({4, 8}).to(at::kBFloat16),
                random.Normal({20000, 8}).to(at::kBFloat16),
                {0, 8191, 8192, 19999},
                {1, -1, 2, 0.5},
                {0.1, 0.2, -0.3, 0.4}};
  const Outcome actual = RunHead(inputs, Options(3));
  const Reference expected = Autograd(inputs);
  EXPECT_LE(RelativeError(actual.output.log_prob_T, expected.log_prob), 5e-6);
  EXPECT_LE(RelativeError(actual.dweight_VD, expected.dweight_VD), 5e-6);
  EXPECT_LE(RelativeError(actual.dhidden_TD, expected.dhidden_TD), 1.0 / 256);
}

// --------------------------------------------------------------------------------------------------- whole rollouts

const std::vector<RowRange> kRollouts = {{0, 1}, {1, 4}, {4, 20}, {20, 23}, {23, 37}};

// A loss that couples a rollout's tokens: the square of its summed log-prob, plus half the square of its summed
// entropy.
struct CallRecorder {
  std::vector<RowRange> calls;
  RowGradient gradient = [this](RowRange range, const at::Tensor& log_prob_T, const at::Tensor& entropy_T,
                                const at::Tensor& dlog_prob_T, const at::Tensor& dentropy_T) {
    calls.push_back(range);
    for (const RowRange& rollout : kRollouts) {
      const int64_t begin = std::max(rollout.begin, range.begin), end = std::min(rollout.end, range.end);
      if (begin >= end) continue;
      const auto part = [&](const at::Tensor& x) { return x.narrow(0, begin - range.begin, end - begin); };
      part(dlog_prob_T).copy_((part(log_prob_T).sum() * 2).expand({end - begin}));
      part(dentropy_T).copy_(part(entropy_T).sum().expand({end - begin}));
    }
  };
};

double Sum(std::span<const double> values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum;
}

Reference CoupledAutograd(Inputs inputs) {
  const Reference forward = Autograd(inputs);
  const std::vector<double> log_prob = AsVector(forward.log_prob), entropy = AsVector(forward.entropy);
  for (const RowRange& rollout : kRollouts) {
    const size_t begin = rollout.begin, count = rollout.end - rollout.begin;
    for (size_t row = begin; row < begin + count; ++row) {
      inputs.dlog_prob[row] = 2 * Sum(std::span(log_prob).subspan(begin, count));
      inputs.dentropy[row] = Sum(std::span(entropy).subspan(begin, count));
    }
  }
  return Autograd(inputs);
}

TEST(HeadWholeRolloutsTest, EachRolloutIsAskedOnceAndWholeHoweverLongItIs) {
  const Inputs inputs = MakeInputs();
  const Reference expected = CoupledAutograd(inputs);
  for (const int64_t chunk_rows : {1, 3, 5, 7, 20, 512}) {
    SCOPED_TRACE(chunk_rows);
    CallRecorder recorder;
    ExpectClose(RunHead(inputs, Options(chunk_rows), kRollouts, &recorder.gradient), expected, kExact);
    // Calls hold whole rollouts, each row once.
    int64_t next = 0;
    for (const RowRange& call : recorder.calls) {
      EXPECT_EQ(call.begin, next);
      next = call.end;
      const auto ends_there = [&](const RowRange& rollout) { return rollout.end == call.end; };
      EXPECT_TRUE(std::any_of(kRollouts.begin(), kRollouts.end(), ends_there)) << call.end;
    }
    EXPECT_EQ(next, kRows);
  }
}

TEST(HeadWholeRolloutsTest, WithoutItARolloutThatChunksCutIsSeen) {
  const Inputs inputs = MakeInputs();
  CallRecorder recorder;
  Outcome outcome;
  outcome.dweight_VD = inputs.dweight();
  HeadForwardBackward(testing::TestBackend(), {inputs.hidden_TD, inputs.weight_VD, inputs.targets_T()}, Options(3),
                      recorder.gradient, outcome.dweight_VD);
  EXPECT_GT(RelativeError(outcome.dweight_VD, CoupledAutograd(inputs).dweight_VD), 0.01);
}

// A NaN in the hidden rows would reach the weight gradient through 0 · NaN if their chunk ran backward.
TEST(HeadSkipTest, AChunkWithoutGradientRunsNoBackward) {
  for (const bool whole_rollouts : {false, true}) {
    Inputs inputs = MakeInputs();
    for (int64_t row = 4; row < 20; ++row) inputs.dlog_prob[row] = inputs.dentropy[row] = 0;
    inputs.hidden_TD.narrow(0, 4, 16).fill_(std::numeric_limits<double>::quiet_NaN());
    const Outcome outcome =
        RunHead(inputs, Options(4), whole_rollouts ? std::span(kRollouts) : std::span<const RowRange>());
    EXPECT_TRUE(at::isfinite(outcome.dweight_VD).all().item<bool>());
    EXPECT_EQ(outcome.dhidden_TD.narrow(0, 4, 16).abs().max().item<double>(), 0);
    EXPECT_TRUE(std::isnan(outcome.output.log_prob_T[4].item<double>()));
  }
}

TEST(HeadSkipTest, RowsWithoutGradientInAChunkThatHasSomeAreZero) {
  Inputs inputs = MakeInputs();
  for (int64_t row = 0; row < kRows; row += 2) inputs.dlog_prob[row] = inputs.dentropy[row] = 0;
  const Outcome outcome = RunHead(inputs, Options(8));
  ExpectClose(outcome, Autograd(inputs), kExact);
  EXPECT_EQ(outcome.dhidden_TD[2].abs().max().item<double>(), 0);
}

TEST(HeadSkipTest, ANanInARowIsSeenInItsLogProbAndInNoOther) {
  Inputs inputs = MakeInputs(at::kFloat);
  inputs.hidden_TD[5][0] = std::numeric_limits<float>::quiet_NaN();
  const HeadOutput output =
      HeadForward(testing::TestBackend(), {inputs.hidden_TD, inputs.weight_VD, inputs.targets_T()}, Options(8));
  for (int64_t row = 0; row < kRows; ++row)
    EXPECT_EQ(std::isnan(output.log_prob_T[row].item<double>()), row == 5) << row;
}

TEST(HeadMemoryTest, OneChunkOfLogitsIsAllThatIsHeld) {
  if (!testing::OnCpuBackend()) GTEST_SKIP() << "composed ops make temporaries";
  InstallCpuAllocator();
  const Inputs inputs = MakeInputs(at::kFloat, 400);
  const at::Tensor dweight = inputs.dweight(), targets_T = inputs.targets_T();
  const int64_t before = CpuMemoryStats().current_bytes;
  ResetPeakBytes();
  const HeadBackwardResult result = HeadForwardBackward(
      testing::TestBackend(), {inputs.hidden_TD, inputs.weight_VD, targets_T}, Options(16), Linear(inputs), dweight);
  // Each row holds log-prob, entropy, their gradients, two numbers of its softmax; the loss of this test makes one
  // more.
  const int64_t chunk = 16 * kVocab * 4, dhidden = 400 * kWidth * 4, rows = 400 * 7 * 8;
  EXPECT_LE(CpuMemoryStats().peak_bytes - before, chunk + dhidden + rows + 1024);  // 1 KiB: rounding of a few tensors
}

// The whole head's results from ranks that have parts of the vocabulary and of the rows.
void ExpectHeadOfRanks(int ranks, const Inputs& inputs, std::span<const RowRange> rollouts, int64_t chunk_rows) {
  const Outcome whole = RunHead(inputs, Options(chunk_rows), rollouts);
  testing::OnRanks(ranks, [&](const TensorParallel& tp) {
    const int64_t begin = kVocab * tp.rank() / ranks, end = kVocab * (tp.rank() + 1) / ranks;
    const at::Tensor weight = inputs.weight_VD.slice(0, begin, end).contiguous(), dweight = at::zeros_like(weight);
    const at::Tensor hidden = testing::PaddedPart(inputs.hidden_TD, tp);
    HeadOptions options = Options(chunk_rows);
    options.vocabulary = {&tp, begin};
    options.whole_rollouts = !rollouts.empty();
    const at::Tensor targets_T = inputs.targets_T();
    const HeadInput input = {hidden, weight, targets_T, rollouts};
    const HeadBackwardResult own = HeadForwardBackward(testing::TestBackend(), input, options, Linear(inputs), dweight);
    EXPECT_LT(RelativeError(own.output.log_prob_T, whole.output.log_prob_T), kExact);
    EXPECT_LT(RelativeError(own.output.entropy_T, whole.output.entropy_T), kExact);
    EXPECT_LT(RelativeError(own.dhidden_TD, testing::PaddedPart(whole.dhidden_TD, tp)), kExact);
    EXPECT_LT(RelativeError(dweight, whole.dweight_VD.slice(0, begin, end)), kExact);
    const HeadOutput forward = HeadForward(testing::TestBackend(), input, options);
    EXPECT_TRUE(forward.log_prob_T.equal(own.output.log_prob_T)) << "chunks of the same rows";
  });
}

TEST(HeadOfRanksTest, IsTheWholeHead) {
  const RowRange rollouts[] = {{0, 4}, {4, 25}, {25, kRows}};  // one is longer than a chunk
  for (const int ranks : {2, 3, 4, 7}) {
    SCOPED_TRACE(ranks);
    for (const int64_t chunk_rows : {1, 8, 100}) ExpectHeadOfRanks(ranks, MakeInputs(), {}, chunk_rows);
    ExpectHeadOfRanks(ranks, MakeInputs(), rollouts, 8);
  }
}

TEST(HeadOfRanksTest, LogitsThatOneRankHasOutweighTheOthers) {
  const Inputs inputs = MakeInputs();
  inputs.weight_VD.slice(0, 0, 10).mul_(300);  // e^u of these overflows in fp64
  ExpectHeadOfRanks(3, inputs, {}, 8);
}

TEST(HeadControlTest, ADroppedEntropyGradientIsSeen) {
  const Inputs inputs = MakeInputs();
  const Outcome outcome = RunHead(inputs, Options(16));
  const Reference without = Autograd(inputs, {.entropy = false});
  EXPECT_GT(RelativeError(outcome.dhidden_TD, without.dhidden_TD), 0.01);
  EXPECT_GT(RelativeError(outcome.dweight_VD, without.dweight_VD), 0.01);
}

TEST(HeadControlTest, ADroppedTemperatureIsSeen) {
  const Inputs inputs = MakeInputs();
  const Outcome outcome = RunHead(inputs, Options(16));
  const Reference without = Autograd(inputs, {.temperature = 1});
  EXPECT_GT(RelativeError(outcome.output.log_prob_T, without.log_prob), 0.01);
  EXPECT_GT(RelativeError(outcome.dhidden_TD, without.dhidden_TD), 0.01);
}

}  // namespace
}  // namespace stemma::worker
