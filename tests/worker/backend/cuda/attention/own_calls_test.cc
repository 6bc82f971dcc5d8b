#include "worker/backend/cuda/attention/own_calls.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/testing/tensors.h"
#include "tests/worker/backend/cuda/attention/fake_flash_calls.h"
#include "tests/worker/backend/cuda/attention/wave_cases.h"
#include "worker/backend/composed/composed_backend.h"
#include "worker/backend/cuda/attention/bucketed_calls.h"
#include "worker/backend/cuda/attention/composed_attention_kernels.h"
#include "worker/backend/cuda/attention/flash_attention.h"

namespace stemma::testing {
namespace {

using worker::cuda::BucketedCalls;
using worker::cuda::ComposedAttentionKernels;
using worker::cuda::FlashAttention;
using worker::cuda::FlashAttentionOptions;
using worker::cuda::OwnCall;
using worker::cuda::OwnCallsOf;

TEST(OwnCallsTest, LongSpansStandAloneAndThoseBetweenThemArePacked) {
  const auto from_five = [](int64_t rows) { return rows >= 5; };
  const std::vector<OwnCall> calls = OwnCallsOf({1, 4, 5, 7, 2, 2, 9}, /*takes_batch=*/false, from_five);
  ASSERT_EQ(calls.size(), 5u);
  const std::vector<std::vector<int64_t>> rows = {{1, 4}, {5}, {7}, {2, 2}, {9}};
  const std::vector<int64_t> begins = {0, 5, 10, 17, 21};
  for (size_t i = 0; i < calls.size(); ++i) {
    EXPECT_EQ(calls[i].rows, rows[i]);
    EXPECT_EQ(calls[i].begin, begins[i]);
    EXPECT_EQ(calls[i].dense, rows[i].front() >= 5);
  }
  EXPECT_EQ(calls.back().end(), 30);
}

TEST(OwnCallsTest, ABatchThatIsTakenIsOneCall) {
  const auto never = [](int64_t) { return false; };
  const std::vector<OwnCall> calls = OwnCallsOf({6, 6}, /*takes_batch=*/true, never);
  ASSERT_EQ(calls.size(), 1u);
  EXPECT_TRUE(calls[0].dense);
  EXPECT_EQ(calls[0].rows, (std::vector<int64_t>{6, 6}));
  EXPECT_FALSE(OwnCallsOf({6, 6}, /*takes_batch=*/false, never).front().dense);
  EXPECT_TRUE(OwnCallsOf({}, /*takes_batch=*/false, never).empty());
}

class LoneSpansTest : public ::testing::Test {
 protected:
  // The faster library takes each span, of all heads, of so many scores and more, and no ancestor.
  FlashAttentionOptions Options(int64_t scores) const {
    FlashAttentionOptions options{.kernels = ComposedAttentionKernels(), .num_multiprocessors = 132};
    options.dense = &bucketed_;
    options.scores_of_lone_span = scores;
    return options;
  }
  static void AdmitCausal(const WaveCase& c, int64_t max_batch, FlashAttentionOptions& options) {
    options.admitted.Admit({.family = {c.num_heads, c.num_kv_heads, c.head_size, c.dtype, /*causal=*/true},
                            .max_batch = max_batch,
                            .min_rows = 128,
                            .max_rows = 128});
  }
  static double ErrorOf(const WaveCase& c, const AttentionOp& attention) {
    return WorstError(RunWave(MakeWave(c), attention), RunWave(MakeWave(c), *MakeComposedAttention()));
  }

  FakeFlashCalls packed_, dense_;
  const BucketedCalls bucketed_{dense_};
};

// Spans with and without ancestors, short and long in any order, against attention on whole scores.
TEST_F(LoneSpansTest, AgreeWithWholeScoresOnDrawnWaves) {
  int64_t waves_of_both = 0;
  for (uint32_t seed = FirstSeed(); seed < FirstSeed() + 150; ++seed) {
    Draw draw(seed);
    WaveCase c = DrawWave(draw);
    c.seed = seed;
    const int64_t rows = draw.Between(1, 12);
    FlashAttentionOptions options = Options(rows * rows * c.num_heads);
    AdmitCausal(c, /*max_batch=*/1, options);
    packed_.Clear();
    dense_.Clear();
    EXPECT_LT(ErrorOf(c, FlashAttention(packed_, options)), kExact) << "seed " << seed << ": " << Describe(c);
    int64_t expected = 0, spans = 0;
    for (const SpanCase& span : c.spans) {
      expected += span.rows >= rows ? 1 : 0;
      spans += span.rows > 0 ? 1 : 0;
    }
    if (spans == 1) expected = 1;  // which is a batch of one
    EXPECT_EQ(dense_.Count(/*forward=*/true), expected) << "seed " << seed << ": " << Describe(c);
    EXPECT_EQ(dense_.Count(/*forward=*/false), expected) << "seed " << seed << ": " << Describe(c);
    waves_of_both += expected > 0 && expected < spans ? 1 : 0;
  }
  EXPECT_GT(waves_of_both, 20);
}

TEST_F(LoneSpansTest, AreTheOtherLibrarysUntilTheirPlansArePaidFor) {
  const WaveCase c{.spans = {{5, -1}, {6, -1}}};
  FlashAttentionOptions options = Options(/*scores=*/6 * 6 * 4);
  AdmitCausal(c, /*max_batch=*/1, options);
  options.flops_of_plans = 1.5 * 2 * 6 * 6 * 4 * 8;  // of the span of six rows
  const FlashAttention attention(packed_, options);
  for (int run = 0; run < 2; ++run) EXPECT_LT(ErrorOf(c, attention), kExact);
  EXPECT_TRUE(dense_.asked().empty()) << "two forwards have just paid";
  EXPECT_LT(ErrorOf(c, attention), kExact);
  EXPECT_EQ(dense_.Count(/*forward=*/true), 1);
  EXPECT_EQ(dense_.Count(/*forward=*/false), 1);
}

TEST_F(LoneSpansTest, AreTheOtherLibrarysWhereNoneSoLongIsAdmitted) {
  const WaveCase c{.spans = {{5, -1}, {130, -1}}};  // of a bucket of 256
  FlashAttentionOptions options = Options(/*scores=*/6 * 6 * 4);
  AdmitCausal(c, /*max_batch=*/1, options);
  EXPECT_LT(ErrorOf(c, FlashAttention(packed_, options)), kExact);
  EXPECT_TRUE(dense_.asked().empty());
}

TEST_F(LoneSpansTest, EquallyLongOnesStayABatch) {
  const WaveCase c{.spans = {{6, -1}, {6, -1}, {6, -1}}};
  FlashAttentionOptions options = Options(/*scores=*/1);
  AdmitCausal(c, /*max_batch=*/3, options);
  EXPECT_LT(ErrorOf(c, FlashAttention(packed_, options)), kExact);
  EXPECT_EQ(dense_.Count(/*forward=*/true), 1);
  EXPECT_EQ(dense_.asked().front().batch, 3);
}

}  // namespace
}  // namespace stemma::testing
