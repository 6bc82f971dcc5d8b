// The stock calls on a GPU against attention on whole scores in fp32 there: what their documentation does not say.
#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>

#include "tests/testing/tensors.h"
#include "tests/worker/backend/cuda/attention/call_checks.h"
#include "tests/worker/backend/cuda/attention/fake_flash_calls.h"
#include "worker/backend/cuda/attention/bucketed_calls.h"
#include "worker/backend/cuda/attention/composed_attention_kernels.h"
#include "worker/backend/cuda/attention/cudnn_calls.h"
#include "worker/backend/cuda/attention/fa2_calls.h"
#include "worker/backend/cuda/attention/flash_attention.h"

namespace stemma::testing {
namespace {

using worker::cuda::AttentionCall;
using worker::cuda::BucketedCalls;
using worker::cuda::CallGradients;
using worker::cuda::CallOutput;
using worker::cuda::ComposedAttentionKernels;
using worker::cuda::CudnnCalls;
using worker::cuda::Fa2Calls;
using worker::cuda::FlashAttention;
using worker::cuda::FlashCalls;
using worker::cuda::PrefixCall;

class CudaAttentionTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!at::hasCUDA()) GTEST_SKIP() << "needs CUDA";
  }
  const at::Device device_{at::kCUDA, 0};
};

void ExpectRightCall(const FlashCalls& calls, const CallShape& shape, at::Device device) {
  const CallErrors errors = ErrorsOfCall(calls, shape, device);
  EXPECT_LT(errors.values, kBf16) << Describe(shape);
  EXPECT_LT(errors.lse, kLse) << Describe(shape);
  EXPECT_TRUE(errors.lse_by_head) << Describe(shape);
}

void ExpectRightWave(const WaveCase& wave, const AttentionOp& attention, at::Device device) {
  const double error = ErrorOfWave(wave, attention, device);
  std::printf("%.1e %s\n", error, Describe(wave).c_str());
  EXPECT_LT(error, kBf16) << Describe(wave);
}

TEST_F(CudaAttentionTest, Fa2GivesWhatItsFakeGives) {
  for (const CallShape& shape : CallShapes()) ExpectRightCall(Fa2Calls(), shape, device_);
}

TEST_F(CudaAttentionTest, CudnnInBucketsGivesWhatFa2Gives) {
  const CudnnCalls cudnn;
  for (const CallShape& shape : CallShapes()) ExpectRightCall(BucketedCalls(cudnn), shape, device_);
}

TEST_F(CudaAttentionTest, KeysOfABatchMayBeTheSameByAStrideOfZero) {
  const Fa2Calls fa2;
  AttentionCall call = MakeCall({4, 96, 200, 8, 2, 128, false}, device_);
  const auto same = [](const at::Tensor& x) { return x.narrow(0, 0, 1).expand(x.sizes()); };
  call.k = same(call.k);
  call.v = same(call.v);
  AttentionCall copied = call;
  copied.k = call.k.contiguous();
  copied.v = call.v.contiguous();
  const CallOutput view = fa2.Forward(call), copy = fa2.Forward(copied);
  EXPECT_TRUE(view.out.equal(copy.out) && view.lse.equal(copy.lse));
  const at::Tensor dout = at::ones_like(view.out);
  const CallGradients a = fa2.Backward(call, {dout, view.out, view.lse, view.rng});
  const CallGradients e = fa2.Backward(copied, {dout, copy.out, copy.lse, copy.rng});
  EXPECT_EQ(a.dk.sizes(), e.dk.sizes());
  EXPECT_TRUE(a.dk.equal(e.dk) && a.dv.equal(e.dv));
}

TEST_F(CudaAttentionTest, TheLseOfAPackedCallIsByHeadThenRow) {
  const Fa2Calls fa2;
  for (const std::vector<int64_t>& rows : {std::vector<int64_t>{5, 1, 130}, {1, 1, 1}}) {
    AttentionCall call = MakeCall({1, 200, 200, 8, 2, 64, true}, device_);
    int64_t total = 0, longest = 0;
    for (const int64_t count : rows) {
      total += count;
      longest = std::max(longest, count);
    }
    for (at::Tensor* x : {&call.q, &call.k, &call.v}) *x = x->squeeze(0).narrow(0, 0, total);
    std::vector<int32_t> offsets = worker::cuda::OffsetsOf(rows);
    call.offsets_q = call.offsets_k = at::tensor(offsets, at::kInt).to(device_);
    call.max_q = call.max_k = longest;
    AttentionCall host = OnHost(call);
    host.offsets_q = host.offsets_k = at::tensor(offsets, at::kInt);
    const CallOutput actual = fa2.Forward(call), expected = FakeFlashCalls().Forward(host);
    EXPECT_EQ(actual.lse.sizes(), (at::IntArrayRef{8, total}));
    EXPECT_TRUE(actual.lse.is_contiguous());
    EXPECT_LT(RelativeError(actual.lse.cpu(), expected.lse), kLse);
    EXPECT_LT(RelativeError(actual.out.cpu(), expected.out), kBf16);
  }
}

template <int64_t kChunks>
int64_t Chunks(const PrefixCall&, int64_t) {
  return kChunks;
}

TEST_F(CudaAttentionTest, AWaveOverFa2IsAttentionOnWholeScores) {
  const Fa2Calls fa2;
  for (const auto& chunks : {Chunks<1>, Chunks<3>}) {
    const FlashAttention attention(
        fa2, {.kernels = ComposedAttentionKernels(), .num_multiprocessors = 132, .chunks = chunks});
    for (const WaveCase& wave : CheckedWaves()) {
      ExpectRightWave(wave, attention, device_);
    }
  }
}

TEST_F(CudaAttentionTest, AWaveOverCudnnIsAttentionOnWholeScores) {
  const Fa2Calls fa2;
  const CudnnCalls cudnn;
  const BucketedCalls dense(cudnn);
  for (const DenseSetting& setting : DenseSettings()) {
    SCOPED_TRACE(setting.name);
    for (const WaveCase& wave : CheckedWaves()) {
      ExpectRightWave(wave, FlashAttention(fa2, OptionsOf(setting, wave, dense)), device_);
    }
  }
}

}  // namespace
}  // namespace stemma::testing
