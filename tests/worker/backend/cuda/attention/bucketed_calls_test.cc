// Padded calls over the fake against calls that are not padded, and the LSE of cuDNN in each of its forms.
#include "worker/backend/cuda/attention/bucketed_calls.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/testing/tensors.h"
#include "tests/worker/backend/cuda/attention/fake_flash_calls.h"
#include "worker/backend/cuda/attention/cudnn_calls.h"

namespace stemma::testing {
namespace {

using worker::cuda::AttentionCall;
using worker::cuda::BucketedCalls;
using worker::cuda::CallBackward;
using worker::cuda::CallGradients;
using worker::cuda::CallOutput;
using worker::cuda::LseOfRows;

struct Shape {
  int64_t batch, rows, keys;
  bool causal;
};

AttentionCall MakeBucketedCall(const Shape& shape, Random& random) {
  return {.q = random.Normal({shape.batch, shape.rows, 4, 8}),
          .k = random.Normal({shape.batch, shape.keys, 2, 8}),
          .v = random.Normal({shape.batch, shape.keys, 2, 8}),
          .max_q = shape.rows,
          .max_k = shape.keys,
          .causal = shape.causal,
          .scale = 0.4};
}

// Memory that nobody has written is NaN in these tests, so that padding is what is written there.
class BucketedCallsTest : public ::testing::TestWithParam<Shape> {
 protected:
  void SetUp() override { at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true); }
  void TearDown() override { at::globalContext().setDeterministicAlgorithms(false, /*warn_only=*/true); }
};

TEST_P(BucketedCallsTest, PaddingChangesNothing) {
  ASSERT_TRUE(at::empty({100}).isnan().all().item<bool>());
  Random random(8);
  const AttentionCall call = MakeBucketedCall(GetParam(), random);
  const FakeFlashCalls calls, under;
  const BucketedCalls bucketed(under);
  const CallOutput expected = calls.Forward(call), actual = bucketed.Forward(call);
  EXPECT_LT(RelativeError(actual.out, expected.out), kExact);
  EXPECT_LT(RelativeError(actual.lse, expected.lse), kExact);
  EXPECT_TRUE(actual.lse.is_contiguous());
  // Larger than this call's own LSE, as a merged one is.
  const CallBackward saved{random.Normal(call.q.sizes()), random.Normal(call.q.sizes()), expected.lse + 0.5,
                           expected.rng};
  const CallGradients g = calls.Backward(call, saved), padded = bucketed.Backward(call, saved);
  EXPECT_LT(RelativeError(padded.dq, g.dq), kExact);
  EXPECT_LT(RelativeError(padded.dk, g.dk), kExact);
  EXPECT_LT(RelativeError(padded.dv, g.dv), kExact);
  for (const AskedCall& asked : under.asked()) {
    EXPECT_EQ(asked.rows / asked.batch % 128, 0);
    EXPECT_EQ(asked.keys / asked.batch, GetParam().causal ? asked.rows / asked.batch : GetParam().keys)
        << "keys that no mask hides are never padded";
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, BucketedCallsTest,
                         ::testing::Values(Shape{1, 1, 5, false}, Shape{1, 64, 33, false}, Shape{1, 128, 7, false},
                                           Shape{2, 129, 64, false}, Shape{1, 1, 1, true}, Shape{1, 63, 63, true},
                                           Shape{3, 130, 130, true}, Shape{1, 192, 192, true}));

// The control: keys padded without a mask are seen.
TEST(BucketedCallsControlTest, PaddedKeysWithoutAMaskChangeTheResult) {
  Random random(9);
  AttentionCall call = MakeBucketedCall({1, 10, 33, false}, random);
  const FakeFlashCalls calls;
  const CallOutput expected = calls.Forward(call);
  call.k = at::constant_pad_nd(call.k, {0, 0, 0, 0, 0, 95});
  call.v = at::constant_pad_nd(call.v, {0, 0, 0, 0, 0, 95});
  call.max_k = 128;
  EXPECT_GT(RelativeError(calls.Forward(call).out, expected.out), 0.1);
}

TEST(CudnnCallsTest, AnLseOfEitherRankIsTheSameRows) {
  Random random(10);
  const at::Tensor lse_BHS = random.Normal({2, 3, 5}, at::kFloat);
  for (const at::Tensor& given : {lse_BHS, lse_BHS.unsqueeze(3), lse_BHS.transpose(1, 2).contiguous().transpose(1, 2),
                                  lse_BHS.transpose(1, 2).contiguous().unsqueeze(3).transpose(1, 2)}) {
    EXPECT_TRUE(LseOfRows(given).equal(lse_BHS));
    EXPECT_TRUE(LseOfRows(given).is_contiguous());
  }
}

}  // namespace
}  // namespace stemma::testing
