// The start-up self-check over split attention makes every form of call that a run makes: what it admits, it has tried.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>

#include "tests/testing/namespaces.h"
#include "tests/worker/backend/cuda/attention/fake_flash_calls.h"
#include "worker/backend/composed/composed_backend.h"
#include "worker/backend/cuda/attention/composed_attention_kernels.h"
#include "worker/backend/cuda/attention/flash_attention.h"
#include "worker/backend/self_check/cases.h"

namespace stemma::testing {
namespace {

using worker::cuda::ComposedAttentionKernels;
using worker::cuda::FlashAttention;
using worker::cuda::FlashAttentionOptions;
using worker::cuda::OptionsWithDense;
using worker::self_check::Case;
using worker::self_check::Operands;
using worker::self_check::Side;

// fp32 holds no e^x beyond it, and none below its negative.
constexpr double kGreatestExponent = 88.7;

class SelfCheckCallsTest : public ::testing::Test {
 protected:
  // As on an H100: FA2's calls, and those that cuDNN takes.
  FlashAttentionOptions Options(const CheckShape& shape) const {
    const FlashAttentionOptions options{.kernels = ComposedAttentionKernels(), .num_multiprocessors = 132};
    return OptionsWithDense(options, dense_, {shape.num_heads, shape.num_kv_heads, shape.head_size, at::kFloat})
        .checked;
  }
  CheckResult Check() const {
    return CheckAttention("attention", FlashAttention(fa2_, Options(shape_)), MakeComposedBackend(),
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

// Runs the large cases of this shape whose names begin so; returns how many there are.
int64_t RunLargeCases(const std::string& begin, const CheckShape& shape, const AttentionOp& attention) {
  const Kernels kernels = ComposedKernels();
  const Side side{.kernels = kernels, .attention = attention};
  int64_t cases = 0;
  for (const Case& one : worker::self_check::AttentionCases(shape)) {
    if (!one.is_large || !one.name.starts_with(begin)) continue;
    Operands operands({.device = at::kCPU, .run_dtype = at::kFloat});
    one.run(side, operands);
    ++cases;
  }
  return cases;
}

// Whatever the heads of a rank are, many or, with tensor parallelism, few.
TEST_F(SelfCheckCallsTest, LongSpansAmongOthersAreTriedAsCallsOfTheirOwn) {
  for (const int64_t heads : {1, 2, 4, 6, 17, 32, 42, 49, 64, 72, 112}) {
    const CheckShape shape{.num_heads = heads, .num_kv_heads = 1, .head_size = 8};
    fa2_.Clear();
    dense_.Clear();
    EXPECT_EQ(RunLargeCases("spans of", shape, FlashAttention(fa2_, Options(shape))), 1);
    for (const bool forward : {true, false}) {
      const auto alone = [&](const AskedCall& c) { return c.forward == forward && c.causal && c.batch == 1; };
      EXPECT_EQ(std::count_if(dense_.asked().begin(), dense_.asked().end(), alone), 2) << heads << " heads";
      EXPECT_TRUE(Asks(fa2_, [&](const AskedCall& c) { return c.forward == forward && c.causal && c.packed; }))
          << heads << " heads: the spans between them";
    }
  }
}

// Keeps what it is asked for, and answers with zeros.
class RecordingAttention final : public AttentionOp {
 public:
  AttentionSaved Forward(const AttentionBatch& batch, const at::Tensor& q_HTE, const at::Tensor& k_TKE,
                         const at::Tensor& v_TKE) const override {
    for (const AttentionSpan& span : batch.spans) {
      const int64_t own = span.end - span.begin;
      const int64_t others = span.ancestor < 0 ? 0 : batch.ancestors[static_cast<size_t>(span.ancestor)].k_CKE.size(0);
      longest_ = std::max(longest_, own);
      most_scores_ = std::max(most_scores_, own * (own + others));
    }
    const int64_t rows = q_HTE.size(1);
    return {q_HTE, k_TKE, v_TKE, at::zeros({rows, q_HTE.size(0) * q_HTE.size(2)}), at::zeros({q_HTE.size(0), rows})};
  }
  AttentionGradients Backward(const AttentionBatch&, const at::Tensor&, const AttentionSaved& saved) const override {
    return {at::zeros_like(saved.q_HTE), at::zeros_like(saved.k_TKE), at::zeros_like(saved.v_TKE)};
  }
  int64_t longest() const { return longest_; }
  int64_t most_scores() const { return most_scores_; }  // of a head

 private:
  mutable int64_t longest_ = 0, most_scores_ = 0;
};

// Plain operations' scores of them take at most 1 GiB.
TEST_F(SelfCheckCallsTest, ALongSpanIsAsLongAsItsScoresAllow) {
  for (const auto& [heads, rows] :
       {std::pair{8, 4096 - 3}, {32, 2048 - 3}, {64, 1408 - 3}, {6, 4352 - 3}, {4, 4352 - 3}, {1, 4352 - 3}}) {
    const RecordingAttention attention;
    EXPECT_EQ(RunLargeCases("", {heads, 1, 8}, attention), 2);
    EXPECT_EQ(attention.longest(), rows);
    EXPECT_LE(heads * attention.most_scores() * 8, int64_t{1} << 30);
  }
}

}  // namespace
}  // namespace stemma::testing
