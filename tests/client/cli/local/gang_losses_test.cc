#include "client/cli/local/gang_losses.h"

#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "tests/testing/draw.h"

namespace stemma::cli {
namespace {

TEST(GangLossesTest, OneWorkersEveryEndIsALoss) {
  GangLosses losses(1);
  for (int i = 0; i < 5; ++i) {
    EXPECT_TRUE(losses.Ended(0));
    losses.Started(0);
  }
}

TEST(GangLossesTest, TheOthersOfItsGenerationFollowTheFirst) {
  GangLosses losses(3);
  EXPECT_TRUE(losses.Ended(1));
  EXPECT_FALSE(losses.Ended(0));
  EXPECT_FALSE(losses.Ended(2));
}

TEST(GangLossesTest, ASurvivorThatLeavesAfterTheLostOneWasRestartedFollowsStill) {
  GangLosses losses(2);
  EXPECT_TRUE(losses.Ended(1));
  losses.Started(1);
  EXPECT_FALSE(losses.Ended(0));
  losses.Started(0);
  EXPECT_TRUE(losses.Ended(1)) << "a process of the next generation";
}

TEST(GangLossesTest, OnceAllServeTheNextEndIsALoss) {
  GangLosses losses(2);
  EXPECT_TRUE(losses.Ended(1));
  losses.Started(1);
  losses.AllServe();
  EXPECT_TRUE(losses.Ended(0));
}

// Whatever happens, no more ends go uncounted than the other workers of the losses that are counted.
TEST(GangLossesTest, FailuresWithoutEndAreCountedWithoutEnd) {
  const unsigned seed = testing::FirstSeed();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 200; ++round) {
    const size_t workers = 1 + random() % 5;
    GangLosses losses(workers);
    std::vector<bool> running(workers, true);
    size_t counted = 0, followed = 0;
    for (int event = 0; event < 100; ++event) {
      const size_t worker = random() % workers;
      if (!running[worker]) {
        losses.Started(worker);
      } else {
        ++(losses.Ended(worker) ? counted : followed);
      }
      running[worker] = !running[worker];
      ASSERT_LE(followed, counted * (workers - 1));
    }
    EXPECT_GT(counted, 0u);
  }
}

}  // namespace
}  // namespace stemma::cli
