#include "worker/parallel/collective.h"

#include "gtest/gtest.h"
#include "tests/testing/namespaces.h"
#include "worker/parallel/collective_stats.h"

namespace stemma::testing {
namespace {

TEST(CollectiveTest, BytesFollowTheFormulaOfEachKind) {
  EXPECT_EQ(CollectiveBytes(CollectiveKind::kAllReduceSum, 1200, 4), 1800);
  EXPECT_EQ(CollectiveBytes(CollectiveKind::kAgree, 24, 2), 24);
  EXPECT_EQ(CollectiveBytes(CollectiveKind::kReduceScatterSum, 1200, 4), 900);
  EXPECT_EQ(CollectiveBytes(CollectiveKind::kAllGather, 1200, 3), 800);
  EXPECT_EQ(CollectiveBytes(CollectiveKind::kBroadcast, 1200, 3), 1200);
  EXPECT_EQ(CollectiveBytes(CollectiveKind::kSend, 1200, 3), 1200);
  EXPECT_EQ(CollectiveBytes(CollectiveKind::kReceive, 1200, 3), 1200);
  EXPECT_EQ(CollectiveBytes(CollectiveKind::kAllReduceSum, 4, 3), 5);  // 5.33
}

TEST(CollectiveTest, OneRankMovesNothing) {
  for (const auto kind : {CollectiveKind::kAllReduceSum, CollectiveKind::kAllGather, CollectiveKind::kBroadcast}) {
    EXPECT_EQ(CollectiveBytes(kind, 1200, 1), 0) << KindName(kind);
  }
}

TEST(CollectiveStatsTest, TotalsAreKeptByName) {
  CollectiveStats stats;
  stats.Add("gradients", 100, 0.5);
  stats.Add("weights", 7, 0.25);
  stats.Add("gradients", 30, 0.25, /*came=*/true);
  const auto totals = stats.Read();
  ASSERT_EQ(totals.size(), 2u);
  EXPECT_EQ(totals.at("gradients").calls, 2);
  EXPECT_EQ(totals.at("gradients").bytes, 130);
  EXPECT_EQ(totals.at("gradients").sent, 100);
  EXPECT_EQ(totals.at("gradients").seconds, 0.75);
  EXPECT_EQ(totals.at("weights").calls, 1);
}

}  // namespace
}  // namespace stemma::testing
