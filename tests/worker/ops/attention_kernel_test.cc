// The CPU kernel by itself, bit by bit: what it computes depends neither on how keys are held nor on threads. That it
// computes the right thing is attention_test.
#include "worker/backend/cpu/attention_kernel.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/testing/tensors.h"

namespace stemma::worker {
namespace {

using testing::Random;

constexpr int64_t kKvHeads = 4, kGroup = 3, kHeadSize = 16;

struct KernelInputs {
  at::Tensor q, dout, k, v;  // k, v in bf16, views of a longer buffer
  bool causal;
};

KernelInputs MakeKernelInputs(int64_t keys, bool causal) {
  Random random(3);
  const auto rows = [&] { return random.Normal({1, kKvHeads, kGroup, causal ? keys : 140, kHeadSize}, at::kFloat); };
  const auto cut = [&] {
    return random.Normal({1, kKvHeads, keys + 5, kHeadSize}, at::kFloat).to(at::kBFloat16).narrow(2, 2, keys);
  };
  return {rows(), rows(), cut(), cut(), causal};
}

// Output, log-sum-exp, dq, dk, dv; with k and v in `held_in`.
std::vector<at::Tensor> Compute(const KernelInputs& in, at::ScalarType held_in) {
  const CpuAttention kernel;
  const at::Tensor k = in.k.to(held_in), v = in.v.to(held_in);
  const AttentionKernel::Call call = {in.q, k, v, in.causal, /*scale=*/0.25};
  const AttentionKernel::Output output = kernel.Forward(call);
  const AttentionKernel::KeyGradients sums{at::zeros(k.sizes(), at::kFloat), at::zeros(v.sizes(), at::kFloat)};
  const at::Tensor dq = kernel.Backward(call, output, in.dout, sums);
  return {output.out, output.lse, dq, sums.dk, sums.dv};
}

void ExpectSameBits(const std::vector<at::Tensor>& actual, const std::vector<at::Tensor>& expected, int64_t keys) {
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(at::equal(actual[i], expected[i])) << keys << " keys, result " << i;
  }
}

// Keys are worked through in blocks of 512; bf16 is exact in fp32, so nothing may differ.
class AttentionKernelTest : public ::testing::TestWithParam<bool> {};

TEST_P(AttentionKernelTest, KeysInBfloat16GiveTheBitsOfTheSameKeysInSinglePrecision) {
  for (const int64_t keys : {1, 511, 512, 513, 1100}) {
    const KernelInputs in = MakeKernelInputs(keys, GetParam());
    ExpectSameBits(Compute(in, at::kBFloat16), Compute(in, at::kFloat), keys);
  }
}

TEST_P(AttentionKernelTest, ResultsDoNotDependOnTheNumberOfThreads) {
  const int threads_before = at::get_num_threads();
  for (const int64_t keys : {1, 37, 513}) {
    const KernelInputs in = MakeKernelInputs(keys, GetParam());
    for (const at::ScalarType held_in : {at::kFloat, at::kBFloat16}) {
      at::set_num_threads(1);
      const std::vector<at::Tensor> one = Compute(in, held_in);
      at::set_num_threads(3);
      ExpectSameBits(Compute(in, held_in), one, keys);
    }
  }
  at::set_num_threads(threads_before);
}

INSTANTIATE_TEST_SUITE_P(Masks, AttentionKernelTest, ::testing::Bool(),
                         [](const auto& test) { return test.param ? "causal" : "full"; });

}  // namespace
}  // namespace stemma::worker
