// Mistakes that a loss cannot see must be seen by the comparison of flash_attention_test.cc.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdio>

#include "tests/testing/tensors.h"
#include "tests/worker/backend/cuda/attention/fake_flash_calls.h"
#include "tests/worker/backend/cuda/attention/wave_cases.h"
#include "worker/backend/composed/composed_backend.h"
#include "worker/backend/cuda/attention/composed_attention_kernels.h"
#include "worker/backend/cuda/attention/flash_attention.h"

namespace stemma::testing {
namespace {

using worker::cuda::AddPartsOperands;
using worker::cuda::ComposedAttentionKernels;
using worker::cuda::FlashAttention;
using worker::cuda::FlashAttentionOptions;
using worker::cuda::FlashCalls;

const WaveCase kCase{
    .num_heads = 8, .num_kv_heads = 2, .head_size = 32, .ancestor_rows = {64}, .spans = {{16, 0}, {16, 0}, {9, 0}}};

WaveResult RunFromZero(const WaveCase& c, const AttentionOp& attention) {
  const WaveInputs in = MakeWave(c);
  for (const AncestorKv& ancestor : in.batch.ancestors) {
    ancestor.gk_CKE.zero_();
    ancestor.gv_CKE.zero_();
  }
  return RunWave(in, attention);
}

WaveResult Expected(const WaveCase& c) { return RunFromZero(c, *MakeComposedAttention()); }

FlashAttentionOptions ControlOptions() { return {.kernels = ComposedAttentionKernels()}; }

TEST(AttentionControlTest, ABackwardWithoutTheMergedOutputOrLseFails) {
  const WaveResult expected = Expected(kCase);
  struct Expectation {
    WrongBackward wrong;
    double gk_at_least;
    bool gv_exact;
  };
  for (const auto& [wrong, gk_at_least, gv_exact] :
       {Expectation{WrongBackward::kOwnOutputAndLse, 0.02, true}, Expectation{WrongBackward::kOwnOutput, 0.02, true},
        Expectation{WrongBackward::kOwnLse, 0.1, false}}) {
    const WrongFlashCalls calls(wrong);
    const WaveResult actual = RunFromZero(kCase, FlashAttention(calls, ControlOptions()));
    EXPECT_LT(RelativeError(actual.o_TD, expected.o_TD), kExact);
    EXPECT_GT(RelativeError(actual.gk[0], expected.gk[0]), gk_at_least) << static_cast<int>(wrong);
    EXPECT_GT(RelativeError(actual.dq_HTE, expected.dq_HTE), gk_at_least) << static_cast<int>(wrong);
    EXPECT_EQ(RelativeError(actual.gv[0], expected.gv[0]) < kExact, gv_exact) << static_cast<int>(wrong);
  }
}

void AddPartsTwice(const AddPartsOperands& args) {
  ComposedAttentionKernels().add_parts(args);
  ComposedAttentionKernels().add_parts(args);
}

TEST(AttentionControlTest, AnAncestorsGradientsAddedTwiceFail) {
  FlashAttentionOptions options = ControlOptions();
  options.kernels.add_parts = AddPartsTwice;
  const FakeFlashCalls calls;
  const WaveResult actual = RunFromZero(kCase, FlashAttention(calls, options)), expected = Expected(kCase);
  EXPECT_GT(RelativeError(actual.gk[0], expected.gk[0]), 0.9);
  EXPECT_GT(RelativeError(actual.gv[0], expected.gv[0]), 0.9);
}

at::Tensor SendOffByOne(const at::Tensor& host, at::Device device) {
  const at::Tensor wrong = host.clone();
  wrong.slice(0, 1, -1).add_(1);
  return SendBlocking(wrong, device);
}

TEST(AttentionControlTest, OffsetsOffByOneFail) {
  FlashAttentionOptions options = ControlOptions();
  options.send = SendOffByOne;
  const FakeFlashCalls calls;
  for (const WaveCase& c : {WaveCase{.spans = {{9, -1}, {12, -1}, {9, -1}}},
                            WaveCase{.ancestor_rows = {7, 9, 7}, .spans = {{9, 0}, {12, 1}, {9, 2}}}}) {
    EXPECT_GT(WorstError(RunFromZero(c, FlashAttention(calls, options)), Expected(c)), 1e-3) << Describe(c);
  }
}

// Rows go to where their neighbours belong.
void MergeOtherRows(const worker::cuda::MergeOperands& args) {
  ComposedAttentionKernels().merge(args);
  args.o_THE.copy_(args.o_THE.roll({1}, {0}));
}

TEST(AttentionControlTest, RowsMergedInAnotherOrderFail) {
  FlashAttentionOptions options = ControlOptions();
  options.kernels.merge = MergeOtherRows;
  const FakeFlashCalls calls;
  EXPECT_GT(WorstError(RunFromZero(kCase, FlashAttention(calls, options)), Expected(kCase)), 1e-2);
}

void AddPartsInRunDtype(const AddPartsOperands& args) {
  ComposedAttentionKernels().add_parts(args);
  args.sum_CKE.copy_(args.sum_CKE.to(args.parts_NCKE.scalar_type()));
}

// The relative Frobenius error of gK after `waves` waves of one suffix each over one ancestor, in bf16.
double ErrorAfter(int64_t waves, const AttentionOp& attention) {
  WaveCase c{.num_heads = 4, .num_kv_heads = 1, .head_size = 64, .ancestor_rows = {64}, .spans = {{16, 0}}};
  c.dtype = at::kBFloat16;
  at::Tensor gk[2];
  for (const bool exact : {false, true}) {
    AncestorKv ancestor;
    for (int64_t wave = 0; wave < waves; ++wave) {
      c.seed = 100 + static_cast<uint64_t>(wave);
      WaveInputs in = MakeWave(c, at::kCPU, exact ? at::kDouble : at::kBFloat16);
      if (wave == 0) {
        ancestor = in.batch.ancestors[0];
        ancestor.gk_CKE.zero_();
        ancestor.gv_CKE.zero_();
      }
      in.batch.ancestors[0] = ancestor;
      RunWave(in, exact ? *MakeComposedAttention() : attention);
    }
    gk[exact ? 1 : 0] = ancestor.gk_CKE.to(at::kDouble);
  }
  return ((gk[0] - gk[1]).norm() / gk[1].norm()).item<double>();
}

TEST(AttentionControlTest, TheErrorOfAccumulatedGradientsIsFlatInFp32AndGrowsInBf16) {
  const FakeFlashCalls calls;
  const FlashAttention attention(calls, ControlOptions());
  FlashAttentionOptions in_bf16 = ControlOptions();
  in_bf16.kernels.add_parts = AddPartsInRunDtype;
  const FlashAttention control(calls, in_bf16);
  const double first = ErrorAfter(1, attention), first_control = ErrorAfter(1, control);
  // Roundings of bf16 in q, k, v, o and dk of one wave: some 3e-3, with room for other numbers.
  EXPECT_LT(first, 6e-3);
  double last = 0, last_control = 0;
  for (const int64_t waves : {8, 32, 128}) {
    last = ErrorAfter(waves, attention);
    last_control = ErrorAfter(waves, control);
    std::printf("%3ld waves: fp32 %.2e, bf16 %.2e (one wave %.2e, %.2e)\n", static_cast<long>(waves), last,
                last_control, first, first_control);
    EXPECT_LT(last, 1.2 * first) << waves;
  }
  EXPECT_GT(last_control, 2 * first_control);
}

}  // namespace
}  // namespace stemma::testing
