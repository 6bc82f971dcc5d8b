// The embedding against fp64 autograd of the plain formula, and cut over ranks against the whole one.
#include "worker/ops/vocabulary.h"

#include <gtest/gtest.h>

#include "tests/testing/backends.h"
#include "tests/testing/tensors.h"
#include "tests/worker/ops/ranks.h"

namespace stemma::worker {
namespace {

using testing::AutogradOf;
using testing::kExact;
using testing::Leaf;
using testing::OnRanks;
using testing::PaddedPart;
using testing::Random;
using testing::RelativeError;

TEST(EmbeddingTest, AgreesWithAutogradForRepeatedTokens) {
  Random random(23);
  for (const int64_t rows : {0, 1, 200}) {
    const at::Tensor tokens = random.Integers(13, rows), weight = Leaf(random.Normal({13, 50}));
    const at::Tensor dx = random.Normal({rows, 50});
    const at::Tensor expected = AutogradOf({weight.index_select(0, tokens)}, {dx}, {weight})[0];
    const at::Tensor dweight = at::ones({13, 50}, at::kDouble);
    EmbeddingBackward(testing::TestBackend(), {}, tokens, dx, dweight);
    EXPECT_LT(RelativeError(dweight - 1, expected), kExact);
    EXPECT_TRUE(EmbeddingForward({}, tokens, weight.detach()).equal(weight.detach().index_select(0, tokens)));
  }
}

// A token that occurs twice must be added twice.
TEST(EmbeddingControlTest, AssigningInsteadOfAddingFails) {
  Random random(24);
  const at::Tensor tokens = random.Integers(3, 20), dx = random.Normal({20, 8});
  const at::Tensor right = at::zeros({3, 8}, at::kDouble), wrong = at::zeros({3, 8}, at::kDouble);
  EmbeddingBackward(testing::TestBackend(), {}, tokens, dx, right);
  for (int64_t t = 0; t < 20; ++t) wrong[tokens[t].item<int64_t>()].copy_(dx[t]);
  EXPECT_GT(RelativeError(wrong, right), 1e-1);
}

TEST(EmbeddingTest, GivesTheSameBitsOnAnyNumberOfThreads) {
  Random random(25);
  const at::Tensor tokens = random.Integers(5, 900), dx = random.Normal({900, 64}, at::kFloat);
  std::vector<at::Tensor> sums;
  for (const int threads : {1, 3}) {
    at::set_num_threads(threads);
    sums.push_back(at::zeros({5, 64}));
    EmbeddingBackward(testing::TestBackend(), {}, tokens, dx, sums.back());
  }
  at::set_num_threads(1);
  EXPECT_TRUE(sums[0].equal(sums[1]));
}

// A vocabulary that does not divide, rows that do not, a rank without any row.
TEST(VocabularyTest, RanksHaveTheRowsAndGradientsOfTheWholeEmbedding) {
  Random random(31);
  for (const int ranks : {2, 3, 4}) {
    for (const int64_t rows : {1, 3, 40}) {
      const int64_t vocab = 13;
      const at::Tensor tokens = random.Integers(vocab, rows), weight = random.Normal({vocab, 10});
      const at::Tensor dx = random.Normal({rows, 10}), dweight = at::zeros({vocab, 10}, at::kDouble);
      EmbeddingBackward(testing::TestBackend(), {}, tokens, dx, dweight);
      OnRanks(ranks, [&](const TensorParallel& tp) {
        const int64_t begin = vocab * tp.rank() / ranks, end = vocab * (tp.rank() + 1) / ranks;
        const VocabularyShard shard = {&tp, begin};
        const at::Tensor own = weight.slice(0, begin, end).contiguous(), own_grad = at::zeros_like(own);
        EXPECT_TRUE(EmbeddingForward(shard, tokens, own).equal(PaddedPart(weight.index_select(0, tokens), tp)));
        EmbeddingBackward(testing::TestBackend(), shard, tokens, PaddedPart(dx, tp), own_grad);
        EXPECT_TRUE(own_grad.equal(dweight.slice(0, begin, end))) << ranks << " ranks, " << rows << " rows";
      });
    }
  }
}

TEST(VocabularyTest, OwnTokensAreIndicesAndOthersNone) {
  OnRanks(2, [](const TensorParallel& tp) {
    const at::Tensor own = OwnTokens({&tp, /*begin=*/4 * tp.rank()}, at::arange(9), /*own_rows=*/4);
    const at::Tensor first = at::tensor({0, 1, 2, 3, -1, -1, -1, -1, -1}, at::kLong);
    const at::Tensor second = at::tensor({-1, -1, -1, -1, 0, 1, 2, 3, -1}, at::kLong);
    EXPECT_TRUE(own.equal(tp.rank() == 0 ? first : second)) << own;
  });
}

}  // namespace
}  // namespace stemma::worker
