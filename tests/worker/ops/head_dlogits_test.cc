// The head where products take gradients of logits in the run dtype: they lie in the logits' memory, row by row.
#include <algorithm>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "tests/testing/tensors.h"
#include "worker/backend/composed/composed_backend.h"
#include "worker/ops/head.h"
#include "worker/ops/tensor_parallel.h"

namespace stemma::worker {
namespace {

using testing::RelativeError;

constexpr int64_t kGradientRows = 21, kGradientWidth = 16, kGradientVocab = 301;

struct Gradients {
  at::Tensor dhidden_TD, dweight_VD;
};

// What head_backward was given, by the last chunk.
struct Given {
  at::Tensor logits_TV, dlogits_TV;
};
Given given;

void NotingHeadBackward(const HeadBackwardOperands& args) {
  given = {args.logits_TV, args.dlogits_TV};
  ComposedKernels().head_backward(args);
}

// Fills what lies between the rows with NaN first.
void SpoilingLogits(const LogitsOperands& args) {
  const at::Tensor& logits = args.logits_TV;
  const int64_t vocab = logits.size(1), between = logits.stride(0) - vocab;
  logits.as_strided({logits.size(0), between}, logits.strides(), logits.storage_offset() + vocab)
      .fill_(std::numeric_limits<double>::quiet_NaN());
  ComposedKernels().logits(args);
}

Gradients RunHeadGradient(bool dlogits_in_run_dtype, at::ScalarType dtype, int64_t row_quantum = 1) {
  Backend backend = MakeComposedBackend();
  backend.dlogits_in_run_dtype = dlogits_in_run_dtype;
  backend.logits_row_quantum = row_quantum;
  if (row_quantum > 1) backend.kernels.logits = SpoilingLogits;
  backend.kernels.head_backward = NotingHeadBackward;
  testing::Random random(5);
  const at::Tensor hidden = random.Normal({kGradientRows, kGradientWidth}).to(dtype),
                   weight = random.Normal({kGradientVocab, kGradientWidth}).to(dtype);
  const at::Tensor targets = random.Integers(kGradientVocab, kGradientRows), dlog_prob = random.Normal({kGradientRows});
  const RowGradient gradient = [&](RowRange range, const at::Tensor&, const at::Tensor&, const at::Tensor& dlog_prob_T,
                                   const at::Tensor&) {
    dlog_prob_T.copy_(dlog_prob.narrow(0, range.begin, range.rows()));
  };
  const at::Tensor dweight =
      at::zeros({kGradientVocab, kGradientWidth}, dtype == at::kDouble ? at::kDouble : at::kFloat);
  // Chunks of 8 rows: three, the last one shorter.
  const HeadBackwardResult result =
      HeadForwardBackward(backend, {hidden, weight, targets},
                          {.temperature = 1, .chunk_rows = 8, .need_entropy = false}, gradient, dweight);
  return {result.dhidden_TD, dweight};
}

TEST(HeadDlogitsTest, TheyBeginWhereTheLogitsRowsDo) {
  RunHeadGradient(/*dlogits_in_run_dtype=*/true, at::kBFloat16);
  EXPECT_EQ(given.dlogits_TV.scalar_type(), at::kBFloat16);
  EXPECT_EQ(given.dlogits_TV.sizes(), given.logits_TV.sizes());
  EXPECT_EQ(given.dlogits_TV.const_data_ptr(), given.logits_TV.const_data_ptr());
  EXPECT_EQ(given.dlogits_TV.stride(0) * 2, given.logits_TV.stride(0) * 4) << "bytes from row to row";
}

TEST(HeadDlogitsTest, TheyAreTheLogitsThemselvesElsewhere) {
  for (const bool in_run_dtype : {false, true}) {
    RunHeadGradient(in_run_dtype, at::kDouble);
    EXPECT_EQ(given.dlogits_TV.const_data_ptr(), given.logits_TV.const_data_ptr());
    EXPECT_EQ(given.dlogits_TV.strides(), given.logits_TV.strides());
  }
}

TEST(HeadDlogitsTest, RowsBeginAtMultiplesOfTheQuantumAndNothingBetweenThemIsRead) {
  for (const at::ScalarType dtype : {at::kDouble, at::kBFloat16}) {
    const Gradients plain = RunHeadGradient(true, dtype);
    EXPECT_EQ(given.logits_TV.stride(0), kGradientVocab) << "no padding where nobody asks for it";
    const Gradients padded = RunHeadGradient(true, dtype, /*row_quantum=*/8);
    EXPECT_EQ(given.logits_TV.size(1), kGradientVocab);
    EXPECT_EQ(given.logits_TV.stride(0), 304);
    EXPECT_EQ(given.dlogits_TV.stride(0), dtype == at::kBFloat16 ? 608 : 304);
    EXPECT_LE(RelativeError(padded.dhidden_TD, plain.dhidden_TD), dtype == at::kDouble ? 1e-14 : 1.0 / 256);
    EXPECT_LE(RelativeError(padded.dweight_VD, plain.dweight_VD), dtype == at::kDouble ? 1e-14 : 1e-5);
  }
}

// One rounding of each gradient to 8 bits, and sums of hundreds of them: errors average out.
TEST(HeadDlogitsTest, GradientsDifferByTheirRoundingOnly) {
  const Gradients exact = RunHeadGradient(false, at::kBFloat16), rounded = RunHeadGradient(true, at::kBFloat16);
  EXPECT_LE(RelativeError(rounded.dhidden_TD, exact.dhidden_TD), 1.0 / 64);
  EXPECT_LE(RelativeError(rounded.dweight_VD, exact.dweight_VD), 1.0 / 64);
  EXPECT_GT(RelativeError(rounded.dweight_VD, exact.dweight_VD), 0) << "the rounded ones were used";
}

}  // namespace
}  // namespace stemma::worker
