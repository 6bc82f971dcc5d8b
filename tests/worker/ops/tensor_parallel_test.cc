// What tensor-parallel ranks exchange against the plain formulas, for rows that divide and rows that do not.
#include "worker/ops/tensor_parallel.h"

#include <gtest/gtest.h>

#include "tests/testing/tensors.h"
#include "tests/worker/ops/ranks.h"
#include "worker/ops/linear.h"
#include "worker/parallel/collective_error.h"

namespace stemma::worker {
namespace {

using testing::MakeThreadRanks;

using testing::kExact;
using testing::OnRanks;
using testing::PaddedPart;
using testing::Random;
using testing::RelativeError;

constexpr int64_t kRows[] = {1, 2, 3, 8, 17};

TEST(TensorParallelTest, GatheredRowsAreTheRowsInTheirDtype) {
  Random random(41);
  for (const at::ScalarType dtype : {at::kDouble, at::kBFloat16}) {
    for (const int64_t rows : kRows) {
      const at::Tensor all = random.Normal({rows, 6}, dtype);
      OnRanks(3, [&](const TensorParallel& tp) {
        EXPECT_EQ(tp.LocalRows(rows), PaddedPart(all, tp).size(0));
        EXPECT_TRUE(tp.GatherRows(PaddedPart(all, tp), rows).equal(all)) << rows;
        EXPECT_TRUE(tp.LocalPart(all).equal(PaddedPart(all, tp))) << rows;
      });
    }
  }
}

// Each rank's padding is zero whatever the memory held before.
TEST(TensorParallelTest, SumsAreTheRanksSumsAndPaddingStaysZero) {
  Random random(42);
  for (const int64_t rows : kRows) {
    const at::Tensor x = random.Normal({rows, 12}), weight = random.Normal({5, 12}),
                     residual = random.Normal({rows, 5});
    const at::Tensor product = at::matmul(x, weight.t());
    OnRanks(4, [&](const TensorParallel& tp) {
      const auto own = [&](const at::Tensor& all) {
        return all.slice(1, 3 * tp.rank(), 3 * tp.rank() + 3).contiguous();
      };
      const at::Tensor forward = tp.ForwardSum(own(x), own(weight), PaddedPart(residual, tp));
      EXPECT_LT(RelativeError(forward, PaddedPart(product + residual, tp)), kExact) << rows;
      const at::Tensor sum = tp.SumRows(at::matmul(own(x), own(weight).t()));
      EXPECT_LT(RelativeError(sum, PaddedPart(product, tp)), kExact) << rows;
      const int64_t own_rows = std::clamp<int64_t>(rows - tp.rank() * tp.LocalRows(rows), 0, tp.LocalRows(rows));
      EXPECT_TRUE(sum.slice(0, own_rows).eq(0).all().item<bool>()) << rows;
      EXPECT_TRUE(forward.slice(0, own_rows).eq(0).all().item<bool>()) << rows;
    });
  }
}

// 1 + 3 · 2^-9: in bf16 each of three sums would round back to 1.
TEST(TensorParallelTest, Bfloat16SumsAreMadeInSinglePrecision) {
  OnRanks(4, [](const TensorParallel& tp) {
    const double value = tp.rank() == 0 ? 1 : 1.0 / 512;
    const at::Tensor partial = at::full({4, 2}, value, at::kBFloat16), zeros = at::zeros({1, 2}, at::kBFloat16);
    const at::Tensor expected = at::full({1, 2}, 1 + 3.0 / 512, at::kFloat).to(at::kBFloat16);
    EXPECT_TRUE(tp.SumRows(partial).equal(expected));
    const at::Tensor weight = at::ones({2, 1}, at::kBFloat16), x = at::full({4, 1}, value, at::kBFloat16);
    EXPECT_TRUE(tp.ForwardSum(x, weight, zeros).equal(expected));
    EXPECT_NE(expected[0][0].item<float>(), 1) << "control: a sum in bf16 would be 1";
  });
}

TEST(TensorParallelTest, EveryRanksValuesComeInOrder) {
  OnRanks(3, [](const TensorParallel& tp) {
    const at::Tensor all = tp.Gather(at::full({2, 2}, static_cast<double>(tp.rank()), at::kDouble));
    for (int64_t rank = 0; rank < 3; ++rank) EXPECT_TRUE(all[rank].eq(static_cast<double>(rank)).all().item<bool>());
  });
}

TEST(TensorParallelTest, OneRankMovesNothing) {
  Random random(43);
  const at::Tensor x = random.Normal({3, 4}), weight = random.Normal({5, 4}), residual = random.Normal({3, 5});
  const TensorParallel& one = WholeLayers();
  EXPECT_TRUE(one.GatherRows(x, 3).is_same(x));
  EXPECT_TRUE(one.LocalPart(x).is_same(x));
  EXPECT_TRUE(one.SumRows(x).is_same(x));
  EXPECT_TRUE(one.ForwardSum(x, weight, residual).equal(LinearForwardAdd(x, weight, residual)));
  EXPECT_EQ(one.LocalRows(7), 7);
}

TEST(TensorParallelTest, ARankThatHasGoneIsAnException) {
  auto ranks = MakeThreadRanks(2, absl::Seconds(60), "tp.0");
  ranks[1].reset();
  const RankTensorParallel tp(*ranks[0]);
  try {
    tp.SumRows(at::ones({2, 2}));
    FAIL() << "the sum has no other rank";
  } catch (const CollectiveError& error) {
    EXPECT_EQ(error.status().code(), absl::StatusCode::kUnavailable);
    EXPECT_NE(std::string(error.what()).find("row_sums"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace stemma::worker
