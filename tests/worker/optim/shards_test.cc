// How optimizer states are dealt to ranks: drawn sizes, ranks and buckets; a plain walk over all elements is the
// oracle.
#include "worker/optim/shards.h"

#include <random>
#include <set>
#include <utility>

#include "common/cost/state_slabs.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/namespaces.h"

namespace stemma::testing {
namespace {

using ::testing::Each;
using ::testing::IsEmpty;

// By parameter and element: the ranks that have it.
using Owners = std::vector<std::vector<std::vector<int64_t>>>;

class ShardsTest : public ::testing::TestWithParam<uint32_t> {
 protected:
  ShardsTest() : random_(GetParam()) {
    for (int64_t i = Between(1, 12); i > 0; --i)
      elements_.push_back(Between(0, 3) == 0 ? Between(0, 20) : Between(1, 3000));
    ranks_ = Between(1, 7);
    bucket_elements_ = Between(1, 6000);
    round_elements_ = Between(1, 4000);
  }

  int64_t Between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random_() % static_cast<uint32_t>(high - low + 1));
  }
  Owners Nobody() const {
    Owners owners;
    for (const int64_t elements : elements_) owners.emplace_back(static_cast<size_t>(elements));
    return owners;
  }
  static void Mark(Owners& owners, int64_t parameter, int64_t begin, int64_t count, int64_t rank) {
    for (int64_t i = begin; i < begin + count; ++i) {
      owners.at(static_cast<size_t>(parameter)).at(static_cast<size_t>(i)).push_back(rank);
    }
  }
  Owners Owned(const OptimizerShards& shards) const {
    Owners owners = Nobody();
    for (int64_t rank = 0; rank < ranks_; ++rank) {
      for (const ParameterRange& r : shards.owned(rank)) Mark(owners, r.parameter, r.begin, r.count, rank);
    }
    return owners;
  }

  std::mt19937 random_;
  std::vector<int64_t> elements_;
  int64_t ranks_ = 1, bucket_elements_ = 1, round_elements_ = 1;
};

TEST_P(ShardsTest, EveryElementHasOneOwner) {
  const OptimizerShards shards(elements_, ranks_, bucket_elements_);
  for (const auto& parameter : Owned(shards)) EXPECT_THAT(parameter, Each(::testing::SizeIs(1)));
}

TEST_P(ShardsTest, ARankOwnsOneRangeOfAParameterCutAtUnits) {
  const OptimizerShards shards(elements_, ranks_, bucket_elements_);
  for (int64_t rank = 0; rank < ranks_; ++rank) {
    CheckRanges(shards.owned(rank), elements_);
    std::set<int64_t> parameters;
    for (const ParameterRange& range : shards.owned(rank)) {
      EXPECT_TRUE(parameters.insert(range.parameter).second) << "of parameter " << range.parameter;
    }
  }
}

TEST_P(ShardsTest, RoundsBringEveryElementOnceFromItsOwner) {
  const OptimizerShards shards(elements_, ranks_, bucket_elements_);
  Owners sent = Nobody();
  for (const ShardRound& round : shards.Rounds(round_elements_)) {
    ASSERT_EQ(static_cast<int64_t>(round.parts.size()), ranks_);
    EXPECT_LE(round.part_elements * ranks_, std::max(round_elements_, ranks_ * kStateSlabUnit));
    for (size_t rank = 0; rank < round.parts.size(); ++rank) {
      int64_t end = 0;  // of the last piece: they do not overlap
      for (const SlabPiece& piece : round.parts[rank]) {
        EXPECT_GE(piece.slab_begin, end);
        end = piece.slab_begin + piece.count;
        Mark(sent, piece.parameter, piece.begin, piece.count, static_cast<int64_t>(rank));
      }
      EXPECT_LE(end, round.part_elements);
    }
  }
  EXPECT_EQ(sent, Owned(shards));
}

// What a rank owns beyond its even share is what rounding brings: a slab unit for each of its buckets and parameters.
TEST_P(ShardsTest, SharesAreEven) {
  const OptimizerShards shards(elements_, ranks_, bucket_elements_);
  int64_t all = 0;
  for (const int64_t elements : elements_) all += elements;
  for (int64_t rank = 0; rank < ranks_; ++rank) {
    int64_t owned = 0;
    for (const ParameterRange& range : shards.owned(rank)) owned += range.count;
    EXPECT_LE(owned, all / ranks_ + kStateSlabUnit * 2 * static_cast<int64_t>(elements_.size()));
  }
}

INSTANTIATE_TEST_SUITE_P(Drawn, ShardsTest, ::testing::Range(0U, 60U));

// A real model's sizes: a rank holds 1 / ranks of the states within 1 %.
TEST(ShardSharesTest, OfAModel) {
  std::vector<int64_t> elements = {32000 * 2048, 2048, 32000 * 2048};
  for (int layer = 0; layer < 16; ++layer)
    elements.insert(elements.end(), {2048, 2048 * 3072, 2048 * 2048, 2048 * 11264});
  double all = 0;
  for (const int64_t n : elements) all += static_cast<double>(n);
  for (const int64_t ranks : {2, 3, 8, 64}) {
    const OptimizerShards shards(elements, ranks);
    for (int64_t rank = 0; rank < ranks; ++rank) {
      double owned = 0;
      for (const ParameterRange& range : shards.owned(rank)) owned += static_cast<double>(range.count);
      EXPECT_NEAR(owned * static_cast<double>(ranks) / all, 1, 0.01) << "rank " << rank << " of " << ranks;
    }
  }
}

TEST(ShardSharesTest, ARankMayOwnNothing) {
  const OptimizerShards shards({5, 3}, /*ranks=*/4);
  EXPECT_EQ(shards.owned(0), (ParameterRanges{{0, 0, 5}}));
  EXPECT_EQ(shards.owned(1), (ParameterRanges{{1, 0, 3}}));
  EXPECT_THAT(shards.owned(2), IsEmpty());
  ASSERT_EQ(shards.Rounds().size(), 1U);
  EXPECT_EQ(shards.Rounds()[0].part_elements, kStateSlabUnit);
}

TEST(IntersectTest, HasWhatIsInBoth) {
  const ParameterRanges a = {{0, 0, 32}, {2, 16, 64}, {3, 0, 8}},
                        b = {{0, 16, 48}, {1, 0, 9}, {2, 0, 32}, {2, 48, 100}};
  const ParameterRanges both = {{0, 16, 16}, {2, 16, 16}, {2, 48, 32}};
  EXPECT_EQ(Intersect(a, b), both);
  EXPECT_EQ(Intersect(b, a), both);
  EXPECT_THAT(Intersect(a, {}), IsEmpty());
  const ParameterRanges longer_before = {{0, 0, 96}, {1, 0, 32}}, later = {{1, 16, 32}};
  EXPECT_EQ(Intersect(longer_before, later), (ParameterRanges{{1, 16, 16}}));
}

}  // namespace
}  // namespace stemma::testing
