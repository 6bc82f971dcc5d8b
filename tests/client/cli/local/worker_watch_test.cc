#include "client/cli/local/worker_watch.h"

#include "gtest/gtest.h"

namespace stemma::cli {
namespace {

TEST(WorkerWatchTest, AWorkerThatTheServerHasIsNeverLost) {
  WorkerWatch watch;
  for (int i = 0; i < 1000; ++i) EXPECT_FALSE(watch.IsLost(/*connected=*/true, 1000));
}

TEST(WorkerWatchTest, OneThatWasDroppedHasAShortWhileToEndByItself) {
  WorkerWatch watch;
  EXPECT_FALSE(watch.IsLost(true, 1000));
  EXPECT_FALSE(watch.IsLost(false, WorkerWatch::kDroppedMaxMs));
  EXPECT_TRUE(watch.IsLost(false, 1));
}

TEST(WorkerWatchTest, OneThatCameBackStartsItsWhileAnew) {
  WorkerWatch watch;
  EXPECT_FALSE(watch.IsLost(true, 1000));
  EXPECT_FALSE(watch.IsLost(false, WorkerWatch::kDroppedMaxMs));
  EXPECT_FALSE(watch.IsLost(true, 1000));
  EXPECT_FALSE(watch.IsLost(false, WorkerWatch::kDroppedMaxMs));
  EXPECT_TRUE(watch.IsLost(false, 1));
}

TEST(WorkerWatchTest, OneThatWasNeverSeenHasLongToLoad) {
  WorkerWatch watch;
  EXPECT_FALSE(watch.IsLost(false, WorkerWatch::kUnseenMaxMs));
  EXPECT_TRUE(watch.IsLost(false, 1));
  watch.Started();
  EXPECT_FALSE(watch.IsLost(false, WorkerWatch::kUnseenMaxMs));
}

}  // namespace
}  // namespace stemma::cli
