#include "worker/backend/cuda/attention/composed_attention_kernels.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/testing/tensors.h"

namespace stemma::testing {
namespace {

using worker::cuda::AttentionKernels;
using worker::cuda::ComposedAttentionKernels;

constexpr int64_t kRows = 7, kHeads = 3, kSize = 5;

// Attention of q [H, T, E] to keys and values [H, C, E], plainly.
struct Plain {
  at::Tensor o_THE, lse_HT;
};
Plain PlainAttention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  const at::Tensor scores = at::matmul(q, k.transpose(1, 2));
  return {at::matmul(scores.softmax(2), v).transpose(0, 1), scores.logsumexp({2})};
}

TEST(ComposedAttentionKernelsTest, MergedPartsAreAttentionToAllKeys) {
  Random random(3);
  const at::Tensor q = random.Normal({kHeads, kRows, kSize});
  const at::Tensor k = random.Normal({kHeads, 11, kSize}), v = random.Normal({kHeads, 11, kSize});
  const Plain all = PlainAttention(q, k, v);
  for (const int64_t cut : {1, 4, 10}) {
    const Plain a = PlainAttention(q, k.narrow(1, 0, cut), v.narrow(1, 0, cut));
    const Plain b = PlainAttention(q, k.slice(1, cut), v.slice(1, cut));
    // Rows of a longer tensor, and an LSE that lies by token.
    const at::Tensor o = at::empty({kRows + 2, kHeads, kSize}, at::kDouble).narrow(0, 1, kRows);
    const at::Tensor lse = at::empty({kRows, kHeads}, at::kDouble).t();
    ComposedAttentionKernels().merge({a.o_THE, b.o_THE, a.lse_HT, b.lse_HT, o, lse});
    EXPECT_LT(RelativeError(o, all.o_THE), kExact);
    EXPECT_LT(RelativeError(lse, all.lse_HT), kExact);
  }
}

TEST(ComposedAttentionKernelsTest, APartOfNoWeightLeavesTheOtherAsItIs) {
  Random random(4);
  const at::Tensor a = random.Normal({kRows, kHeads, kSize}), b = random.Normal({kRows, kHeads, kSize});
  const at::Tensor lse = random.Normal({kHeads, kRows});
  const at::Tensor none = at::full_like(lse, -std::numeric_limits<double>::infinity());
  for (const bool a_counts : {true, false}) {
    const at::Tensor o = at::empty_like(a), merged = at::empty_like(lse);
    ComposedAttentionKernels().merge({a, b, a_counts ? lse : none, a_counts ? none : lse, o, merged});
    // b + 1 (a - b): a rounding of the difference, no more.
    EXPECT_LT(RelativeError(o, a_counts ? a : b), kExact);
    EXPECT_TRUE(merged.equal(lse));
  }
}

TEST(ComposedAttentionKernelsTest, PartsInBf16AreSummedInFp32) {
  Random random(5);
  const at::Tensor parts = random.Normal({9, 6, 2, 8}, at::kBFloat16), sum = random.Normal({6, 2, 8}, at::kFloat);
  const at::Tensor expected = sum.to(at::kDouble) + parts.to(at::kDouble).sum(0);
  ComposedAttentionKernels().add_parts({parts, sum});
  EXPECT_LT(RelativeError(sum, expected), 1e-6);  // ten roundings of fp32
  // The control: the same sum rounded to bf16.
  EXPECT_GT(RelativeError(expected.to(at::kBFloat16), expected), 1e-4);
}

TEST(ComposedAttentionKernelsTest, PartsMayBeOneAndMayBeViews) {
  Random random(6);
  const at::Tensor parts = random.Normal({1, 6, 4, 8}).slice(2, 1, 3), sum = random.Normal({9, 2, 8}).narrow(0, 2, 6);
  const at::Tensor expected = sum + parts[0];
  ComposedAttentionKernels().add_parts({parts, sum});
  EXPECT_LT(RelativeError(sum, expected), kExact);
}

}  // namespace
}  // namespace stemma::testing
