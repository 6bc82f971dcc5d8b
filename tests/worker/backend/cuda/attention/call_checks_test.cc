// The checks of a GPU's calls (call_checks.h) pass over the fake in bf16, and fail where it is wrong.
#include "tests/worker/backend/cuda/attention/call_checks.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <array>

#include "tests/worker/backend/cuda/attention/fake_flash_calls.h"
#include "worker/backend/cuda/attention/bucketed_calls.h"
#include "worker/backend/cuda/attention/composed_attention_kernels.h"
#include "worker/backend/cuda/attention/flash_attention.h"

namespace stemma::testing {
namespace {

using worker::cuda::BucketedCalls;
using worker::cuda::ComposedAttentionKernels;
using worker::cuda::FlashAttention;
using worker::cuda::FlashCalls;

TEST(CallChecksTest, TheFakeInBf16PassesThem) {
  const FakeFlashCalls fake;
  const BucketedCalls bucketed(fake);
  for (const CallShape& shape : CallShapes()) {
    for (const FlashCalls* calls : {static_cast<const FlashCalls*>(&fake), static_cast<const FlashCalls*>(&bucketed)}) {
      const CallErrors errors = ErrorsOfCall(*calls, shape, at::kCPU);
      EXPECT_LT(errors.values, kBf16) << Describe(shape);
      EXPECT_LT(errors.lse, kLse) << Describe(shape);
      EXPECT_TRUE(errors.lse_by_head) << Describe(shape);
    }
  }
}

TEST(CallChecksTest, WavesOverTheFakeInBf16PassThem) {
  const FakeFlashCalls fake;
  const FlashAttention attention(fake, {.kernels = ComposedAttentionKernels(), .num_multiprocessors = 132});
  for (const WaveCase& wave : CheckedWaves()) {
    EXPECT_LT(ErrorOfWave(wave, attention, at::kCPU), kBf16) << Describe(wave);
  }
}

// What a GPU is asked for by the waves over both libraries.
TEST(CallChecksTest, SettingsOfADenseLibraryMakeEachFormOfItsCalls) {
  std::array<bool, 2> alone = {}, several_parts = {};  // backward, forward
  for (const DenseSetting& setting : DenseSettings()) {
    for (const WaveCase& wave : CheckedWaves()) {
      const FakeFlashCalls fa2, dense;
      const BucketedCalls bucketed(dense);
      const FlashAttention attention(fa2, OptionsOf(setting, wave, bucketed));
      EXPECT_LT(ErrorOfWave(wave, attention, at::kCPU), kBf16) << setting.name << ": " << Describe(wave);
      for (const bool forward : {false, true}) {
        int64_t lone_spans = 0, packed_spans = 0, parts = 0;
        for (const AskedCall& call : dense.asked()) {
          if (call.forward != forward) continue;
          lone_spans += call.causal && call.batch == 1 ? 1 : 0;
          parts += call.causal ? 0 : 1;
        }
        for (const AskedCall& call : fa2.asked()) {
          packed_spans += call.forward == forward && call.causal && call.packed ? 1 : 0;
        }
        if (lone_spans > 1 && packed_spans > 1) alone[forward ? 1 : 0] = true;
        if (wave.ancestor_rows.size() == 1 && parts > 1) several_parts[forward ? 1 : 0] = true;
      }
    }
  }
  EXPECT_TRUE(alone[0] && alone[1]) << "long spans among others";
  EXPECT_TRUE(several_parts[0] && several_parts[1]) << "an ancestor's keys in several calls";
}

TEST(CallChecksTest, ABackwardThatReadsItsOwnOutputOrLseFailsThem) {
  for (const WrongBackward wrong :
       {WrongBackward::kOwnOutput, WrongBackward::kOwnLse, WrongBackward::kOwnOutputAndLse}) {
    const WrongFlashCalls calls(wrong);
    for (const CallShape& shape : {CallShape{1, 65, 129, 8, 2, 64, false}, CallShape{1, 192, 192, 8, 2, 64, true}}) {
      EXPECT_GT(ErrorsOfCall(calls, shape, at::kCPU).values, 5 * kBf16) << Describe(shape);
    }
    const FlashAttention attention(calls, {.kernels = ComposedAttentionKernels()});
    EXPECT_GT(ErrorOfWave(CheckedWaves()[1], attention, at::kCPU), kBf16) << static_cast<int>(wrong);
  }
}

}  // namespace
}  // namespace stemma::testing
