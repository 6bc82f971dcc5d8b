// The start-up self-check over split attention makes every form of call that a run makes: what it admits, it has tried.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "tests/testing/namespaces.h"
#include "tests/worker/backend/cuda/attention/fake_flash_calls.h"
#include "worker/backend/composed/composed_backend.h"
#include "worker/backend/cuda/attention/buckets.h"
#include "worker/backend/cuda/attention/composed_attention_kernels.h"
#include "worker/backend/cuda/attention/flash_attention.h"
#include "worker/backend/self_check/cases.h"

namespace stemma::testing {
namespace {

using worker::cuda::ComposedAttentionKernels;
using worker::cuda::FlashAttention;
using worker::cuda::FlashAttentionOptions;
using worker::cuda::ShapesOfHeads;

// fp32 holds no e^x beyond it, and none below its negative.
constexpr double kGreatestExponent = 88.7;

class SelfCheckCallsTest : public ::testing::Test {
 protected:
  // As on an H100: FA2's calls, and those that cuDNN takes.
  FlashAttentionOptions Options() const {
    FlashAttentionOptions options{.kernels = ComposedAttentionKernels()};
    options.num_multiprocessors = 132;
    options.dense = &dense_;
    options.admitted = ShapesOfHeads({shape_.num_heads, shape_.num_kv_heads, shape_.head_size, at::kFloat});
    return options;
  }
  CheckResult Check() const {
    return CheckAttention("attention", FlashAttention(fa2_, Options()), MakeComposedBackend(),
                          {.kernels = ComposedKernels(), .attention = MakeComposedAttention()},
                          {.dtype = at::kFloat, .shape = shape_, .large_cases = false});
  }

  const CheckShape shape_ = {.num_heads = 8, .num_kv_heads = 2, .head_size = 16};
  FakeFlashCalls fa2_, dense_;
};

template <typename Predicate>
bool Asks(const FakeFlashCalls& calls, const Predicate& predicate) {
  return std::any_of(calls.asked().begin(), calls.asked().end(), predicate);
}

TEST_F(SelfCheckCallsTest, SplitAttentionOverBothLibrariesIsAdmitted) {
  const CheckResult result = Check();
  EXPECT_TRUE(result.admitted) << result.reason;
}

TEST_F(SelfCheckCallsTest, TheFasterLibraryIsAskedForEveryFormOfItsCalls) {
  Check();
  for (const bool forward : {true, false}) {
    EXPECT_TRUE(Asks(dense_, [&](const AskedCall& c) { return c.forward == forward && c.causal && c.batch > 1; }))
        << "equally long spans";
    EXPECT_TRUE(Asks(dense_, [&](const AskedCall& c) { return c.forward == forward && !c.causal && c.rows == 1; }))
        << "one query";
    EXPECT_TRUE(Asks(dense_, [&](const AskedCall& c) { return c.forward == forward && !c.causal && c.keys >= 1024; }))
        << "the first keys of a long prefix";
  }
  for (const bool causal : {true, false}) {
    EXPECT_TRUE(Asks(dense_, [&](const AskedCall& c) {
      return c.forward && c.causal == causal && c.greatest_lse > kGreatestExponent;
    })) << "large scores";
    EXPECT_TRUE(Asks(dense_, [&](const AskedCall& c) {
      return c.forward && c.causal == causal && c.greatest_lse < -kGreatestExponent;
    })) << "low scores";
  }
  EXPECT_FALSE(Asks(dense_, [](const AskedCall& c) { return c.packed; }));
}

TEST_F(SelfCheckCallsTest, Fa2IsAskedForEveryFormOfItsCalls) {
  Check();
  for (const bool forward : {true, false}) {
    for (const bool causal : {true, false}) {
      EXPECT_TRUE(Asks(fa2_, [&](const AskedCall& c) {
        return c.forward == forward && c.causal == causal && c.packed && c.batch > 1;
      })) << (causal ? "spans" : "neighbouring ancestors");
    }
  }
  EXPECT_TRUE(Asks(fa2_, [](const AskedCall& c) { return !c.forward && !c.causal && c.batch > 1 && c.shared_keys; }))
      << "chunks";
}

// Keeps what it is asked for, and answers with zeros.
class RecordingAttention final : public AttentionOp {
 public:
  AttentionSaved Forward(const AttentionBatch& batch, const at::Tensor& q_HTE, const at::Tensor& k_TKE,
                         const at::Tensor& v_TKE) const override {
    longest_ = std::max(longest_, batch.spans.front().end);
    if (batch.spans.size() > 1) fewest_long_ = batch.spans.back().end - batch.spans.back().begin;
    const int64_t rows = q_HTE.size(1);
    return {q_HTE, k_TKE, v_TKE, at::zeros({rows, q_HTE.size(0) * q_HTE.size(2)}), at::zeros({q_HTE.size(0), rows})};
  }
  AttentionGradients Backward(const AttentionBatch&, const at::Tensor&, const AttentionSaved& saved) const override {
    return {at::zeros_like(saved.q_HTE), at::zeros_like(saved.k_TKE), at::zeros_like(saved.v_TKE)};
  }
  int64_t longest() const { return longest_; }
  int64_t fewest_long() const { return fewest_long_; }  // rows of the last span of several

 private:
  mutable int64_t longest_ = 0, fewest_long_ = 0;
};

// Plain operations' scores of them take at most 1 GiB.
TEST_F(SelfCheckCallsTest, ALongSpanIsAsLongAsItsScoresAllow) {
  for (const auto& [heads, rows] : {std::pair{8, 4096 - 3}, {32, 2048 - 3}, {64, 1408 - 3}, {1, 4352 - 3}}) {
    const RecordingAttention attention;
    const Kernels kernels = ComposedKernels();
    const worker::self_check::Side side{.kernels = kernels, .attention = attention};
    int64_t large = 0;
    for (const worker::self_check::Case& one : worker::self_check::AttentionCases({heads, 1, 8})) {
      if (!one.is_large) continue;
      worker::self_check::Operands operands({.device = at::kCPU, .run_dtype = at::kFloat});
      one.run(side, operands);
      ++large;
    }
    EXPECT_EQ(large, 2);
    EXPECT_EQ(attention.longest(), rows);
    if (heads > 1) {
      EXPECT_GE(attention.fewest_long() * attention.fewest_long() * heads, worker::cuda::kScoresOfLoneSpan)
          << "spans among others are calls of their own";
    }
    EXPECT_LE(heads * attention.longest() * attention.longest() * 8, int64_t{1} << 30);
  }
}

}  // namespace
}  // namespace stemma::testing
