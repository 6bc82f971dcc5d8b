#include "server/protocol/running_job.h"

#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace stemma::server {
namespace {

using testing::Invalid;

constexpr absl::Duration kFloor = absl::Minutes(5);

internal::v1::StepKey Key(uint64_t step, uint32_t attempt) {
  internal::v1::StepKey key;
  key.set_step(step);
  key.set_attempt(attempt);
  key.set_request_id("r");
  return key;
}

TEST(RunningJobTest, AVoteCountsOnceAndAnAppliedAfterItOnly) {
  RunningJob job(kFloor);
  EXPECT_FALSE(job.exists());
  EXPECT_FALSE(job.AwaitsVote({})) << "no job has no key";
  job.BeginUpdate("r", std::nullopt);
  job.Prepare(absl::UnixEpoch(), Key(1, 1), {});
  EXPECT_TRUE(job.Is("r"));
  EXPECT_TRUE(job.is_update());
  EXPECT_TRUE(job.AwaitsVote(Key(1, 1)));
  EXPECT_FALSE(job.AwaitsVote(Key(1, 2))) << "another attempt";
  EXPECT_FALSE(job.AwaitsVote(Key(2, 1))) << "another step";
  EXPECT_FALSE(job.AwaitsApplied(Key(1, 1)));
  EXPECT_TRUE(job.Attempts(Key(1, 1)));
  job.Commit({}, v1::StepResult::SKIPPED_NONFINITE, {});
  EXPECT_TRUE(job.committed());
  EXPECT_FALSE(job.AwaitsVote(Key(1, 1))) << "a second vote";
  EXPECT_TRUE(job.AwaitsApplied(Key(1, 1)));
  EXPECT_FALSE(job.AwaitsApplied(Key(1, 2)));
  EXPECT_EQ(job.outcome(), v1::StepResult::SKIPPED_NONFINITE);
  job.Prepare(absl::UnixEpoch(), Key(2, 1), {});
  EXPECT_FALSE(job.committed());
  EXPECT_TRUE(job.AwaitsVote(Key(2, 1)));
  job.End();
  EXPECT_FALSE(job.exists());
  EXPECT_FALSE(job.Is("r"));
  EXPECT_FALSE(job.Attempts(Key(2, 1)));
}

TEST(RunningJobTest, ACallJobHasNoStep) {
  RunningJob job(kFloor);
  job.BeginCallJob("~export/1", "export x", {}, std::nullopt);
  EXPECT_TRUE(job.Is("~export/1"));
  EXPECT_FALSE(job.is_update());
  EXPECT_FALSE(job.AwaitsVote({}));
  EXPECT_FALSE(job.AwaitsApplied({}));
  EXPECT_FALSE(job.Attempts({}));
  EXPECT_EQ(job.AbortMessage().key().request_id(), "~export/1");
  EXPECT_THAT(job.AddResult({}), Invalid("a job that has none"));
}

TEST(RunningJobTest, EachPhaseIsWatchedByItselfAndNamed) {
  RunningJob job(kFloor);
  job.BeginUpdate("r", std::nullopt);
  job.Prepare(absl::UnixEpoch(), Key(1, 1), {});
  job.Pass(kFloor - absl::Seconds(1));
  EXPECT_EQ(job.Problem(), "");
  internal::v1::Heartbeat heartbeat;
  heartbeat.set_progress(1);
  job.Heard(heartbeat);
  job.Pass(kFloor - absl::Seconds(1));
  EXPECT_EQ(job.Problem(), "") << "it moved";
  job.Commit({}, v1::StepResult::APPLIED, {});
  job.Pass(kFloor - absl::Seconds(1));
  EXPECT_EQ(job.Problem(), "") << "APPLY has its own time";
  job.Pass(absl::Seconds(1));
  EXPECT_EQ(job.Problem().rfind("APPLY of step 1 of request r (attempt 1) stands still for 5m", 0), 0u)
      << job.Problem();
  job.End();
  EXPECT_EQ(job.Problem(), "");
}

TEST(RunningJobDeathTest, TwoJobsNeverRun) {
  RunningJob job(kFloor);
  job.BeginUpdate("r", std::nullopt);
  EXPECT_DEATH(job.BeginUpdate("s", std::nullopt), "r runs, s cannot begin");
  job.Prepare(absl::UnixEpoch(), Key(1, 1), {});
  job.Commit({}, v1::StepResult::APPLIED, {});
  EXPECT_DEATH(job.AbortMessage(), "") << "a committed step is not aborted";
}

}  // namespace
}  // namespace stemma::server
