#include "server/protocol/gang.h"

#include "gtest/gtest.h"
#include "tests/server/planner/cluster_shapes.h"
#include "tests/testing/status_matchers.h"

namespace stemma::server {
namespace {

using testing::BenchModel;
using testing::Invalid;
using testing::IsOk;

constexpr absl::Time kStart = absl::UnixEpoch();

GangOptions Options() {
  GangOptions options;
  options.epoch = 4;
  options.config.set_dtype("fp32");
  options.config.set_threads(8);
  options.model = BenchModel();
  options.lost_after = absl::Seconds(15);
  options.stalled_after = absl::Minutes(5);
  options.return_within = absl::Minutes(2);
  return options;
}

internal::v1::Register Worker(const std::string& incarnation) {
  internal::v1::Register message;
  message.set_incarnation(incarnation);
  message.set_memory_free_bytes(uint64_t{8} << 30);
  return message;
}

internal::v1::Ready Loaded() {
  internal::v1::Ready ready;
  ready.mutable_config()->set_threads(2);
  return ready;
}

// Lets seconds pass, one event each.
void Wait(Gang& gang, absl::Time& now, int seconds) {
  for (int i = 0; i < seconds; ++i) gang.Pass(now += absl::Seconds(1));
}

TEST(GangTest, AWorkerJoinsThenServesThenIsGone) {
  Gang gang(Options());
  EXPECT_FALSE(gang.present());
  const auto configure = gang.Join(kStart, 7, Worker("w"), /*step=*/0);
  ASSERT_THAT(configure.status(), IsOk());
  EXPECT_EQ(configure->epoch(), 4u);
  EXPECT_EQ(configure->generation(), 1u);
  EXPECT_TRUE(gang.Has(7));
  EXPECT_FALSE(gang.Has(8));
  EXPECT_FALSE(gang.serves()) << "it loads the model";
  EXPECT_EQ(gang.config().threads(), 8u) << "in force until it is ready";
  EXPECT_THAT(gang.BecomeReady(Loaded()), IsOk());
  EXPECT_TRUE(gang.serves());
  EXPECT_EQ(gang.config().threads(), 2u);
  EXPECT_GT(gang.config().memory_budget_bytes(), 0u) << "divided for its memory";
  EXPECT_THAT(gang.BecomeReady(Loaded()), Invalid("a second Ready"));
  gang.Leave(kStart);
  EXPECT_FALSE(gang.present());
  EXPECT_FALSE(gang.Has(7));
  EXPECT_TRUE(gang.ever_served());
}

TEST(GangTest, OneAtATimeAndEachInItsOwnGeneration) {
  Gang gang(Options());
  ASSERT_THAT(gang.Join(kStart, 1, Worker("w"), 0).status(), IsOk());
  EXPECT_EQ(gang.Join(kStart, 2, Worker("x"), 0).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(gang.Has(1));
  EXPECT_EQ(gang.Key().incarnation(), "w");
  EXPECT_EQ(gang.Key().generation(), 1u);
  gang.Leave(kStart);
  ASSERT_THAT(gang.Join(kStart, 2, Worker("x"), 3).status(), IsOk());
  EXPECT_EQ(gang.Key().incarnation(), "x");
  EXPECT_EQ(gang.Key().generation(), 2u);
}

TEST(GangTest, AWorkerThatIsTooSmallDoesNotJoin) {
  Gang gang(Options());
  internal::v1::Register small = Worker("w");
  small.set_memory_free_bytes(1 << 20);
  EXPECT_FALSE(gang.Join(kStart, 1, small, 0).ok());
  EXPECT_FALSE(gang.present());
  EXPECT_EQ(gang.generation(), 0u);
}

TEST(GangTest, SilenceIsCountedFromTheLastWord) {
  Gang gang(Options());
  absl::Time now = kStart;
  gang.Pass(now);
  ASSERT_THAT(gang.Join(now, 1, Worker("w"), 0).status(), IsOk());
  Wait(gang, now, 14);
  EXPECT_EQ(gang.Problem(), "");
  gang.Heard();
  Wait(gang, now, 14);
  EXPECT_EQ(gang.Problem(), "");
  Wait(gang, now, 1);
  EXPECT_EQ(gang.Problem(), "no heartbeat for 15s");
}

TEST(GangTest, TimeInWhichTheServerSleptCountsForTwoSecondsOnly) {
  Gang gang(Options());
  gang.Pass(kStart);
  ASSERT_THAT(gang.Join(kStart, 1, Worker("w"), 0).status(), IsOk());
  EXPECT_EQ(gang.Pass(kStart + absl::Hours(1)), kCountedMax);
  EXPECT_EQ(gang.Problem(), "");
}

TEST(GangTest, AWorkerThatSpeaksAndNeverLoadsIsGivenUp) {
  Gang gang(Options());
  absl::Time now = kStart;
  gang.Pass(now);
  ASSERT_THAT(gang.Join(now, 1, Worker("w"), 0).status(), IsOk());
  for (int i = 0; i < 299; ++i) {
    Wait(gang, now, 1);
    gang.Heard();
  }
  EXPECT_EQ(gang.Problem(), "");
  Wait(gang, now, 1);
  EXPECT_NE(gang.Problem().find("loading the model"), std::string::npos) << gang.Problem();
  gang.Heard();
  EXPECT_THAT(gang.BecomeReady(Loaded()), IsOk());
  EXPECT_EQ(gang.Problem(), "");
}

TEST(GangTest, AnotherWorkerIsWaitedForFromTheFirstLossUntilOneIsReady) {
  Gang gang(Options());
  EXPECT_EQ(gang.ReturnDeadline(), absl::InfiniteFuture()) << "before the first worker nothing is waited for";
  ASSERT_THAT(gang.Join(kStart, 1, Worker("w"), 0).status(), IsOk());
  ASSERT_THAT(gang.BecomeReady(Loaded()), IsOk());
  gang.Leave(kStart);
  EXPECT_FALSE(gang.MissingTooLong(kStart + absl::Seconds(119)));
  EXPECT_TRUE(gang.MissingTooLong(kStart + absl::Seconds(120)));
  ASSERT_THAT(gang.Join(kStart + absl::Seconds(60), 2, Worker("x"), 0).status(), IsOk());
  gang.Leave(kStart + absl::Seconds(90));
  EXPECT_TRUE(gang.MissingTooLong(kStart + absl::Seconds(120))) << "one that never loads does not begin the wait anew";
  ASSERT_THAT(gang.Join(kStart + absl::Seconds(100), 3, Worker("y"), 0).status(), IsOk());
  ASSERT_THAT(gang.BecomeReady(Loaded()), IsOk());
  EXPECT_FALSE(gang.MissingTooLong(kStart + absl::Hours(9)));
}

TEST(GangTest, TheNextLookIsASecondAwayAndEventsDoNotPutItOff) {
  Gang gang(Options());
  EXPECT_EQ(gang.NextLook(), absl::InfiniteFuture());
  ASSERT_THAT(gang.Join(kStart, 1, Worker("w"), 0).status(), IsOk());
  gang.Pass(kStart + absl::Milliseconds(900));
  EXPECT_EQ(gang.NextLook(), kStart + absl::Seconds(1));
  gang.Look(kStart + absl::Seconds(1));
  EXPECT_EQ(gang.NextLook(), kStart + absl::Seconds(2));
}

}  // namespace
}  // namespace stemma::server
