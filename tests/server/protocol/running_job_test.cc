#include "server/protocol/running_job.h"

#include "gtest/gtest.h"
#include "server/protocol/job_watch.h"
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
  EXPECT_FALSE(job.AwaitsVote(0, {})) << "no job has no key";
  job.BeginUpdate("r", std::nullopt);
  job.Prepare(absl::UnixEpoch(), {Key(1, 1)}, {});
  EXPECT_TRUE(job.Is("r"));
  EXPECT_TRUE(job.is_update());
  EXPECT_TRUE(job.AwaitsVote(0, Key(1, 1)));
  EXPECT_FALSE(job.AwaitsVote(0, Key(1, 2))) << "another attempt";
  EXPECT_FALSE(job.AwaitsVote(0, Key(2, 1))) << "another step";
  EXPECT_FALSE(job.AwaitsApplied(0, Key(1, 1)));
  EXPECT_TRUE(job.Attempts(0, Key(1, 1)));
  job.Commit({}, v1::StepResult::SKIPPED_NONFINITE, {});
  EXPECT_TRUE(job.committed());
  EXPECT_FALSE(job.AwaitsVote(0, Key(1, 1))) << "a second vote";
  EXPECT_TRUE(job.AwaitsApplied(0, Key(1, 1)));
  EXPECT_FALSE(job.AwaitsApplied(0, Key(1, 2)));
  EXPECT_EQ(job.outcome(), v1::StepResult::SKIPPED_NONFINITE);
  job.Prepare(absl::UnixEpoch(), {Key(2, 1)}, {});
  EXPECT_FALSE(job.committed());
  EXPECT_TRUE(job.AwaitsVote(0, Key(2, 1)));
  job.End();
  EXPECT_FALSE(job.exists());
  EXPECT_FALSE(job.Is("r"));
  EXPECT_FALSE(job.Attempts(0, Key(2, 1)));
}

TEST(RunningJobTest, AStepGoesOnWhenTheLastRankHasAnswered) {
  RunningJob job(kFloor);
  internal::v1::StepKey second = Key(1, 1);
  second.set_incarnation("w2");
  job.BeginUpdate("r", std::nullopt);
  job.Prepare(absl::UnixEpoch(), {Key(1, 1), second}, {});
  EXPECT_FALSE(job.AwaitsVote(0, second)) << "another rank's key";
  EXPECT_FALSE(job.AwaitsVote(2, second)) << "no such rank";
  internal::v1::Vote vote;
  vote.set_message("of rank 1");
  EXPECT_FALSE(job.AddVote(1, vote));
  EXPECT_FALSE(job.AwaitsVote(1, second)) << "it has voted";
  EXPECT_TRUE(job.AwaitsVote(0, Key(1, 1)));
  EXPECT_TRUE(job.AddVote(0, {}));
  EXPECT_EQ(job.votes()[1].message(), "of rank 1");
  job.Commit({}, v1::StepResult::APPLIED, {});
  EXPECT_TRUE(job.AwaitsApplied(1, second)) << "asked anew";
  EXPECT_FALSE(job.AddApplied(0, {}));
  EXPECT_FALSE(job.AwaitsApplied(0, Key(1, 1)));
  EXPECT_TRUE(job.AddApplied(1, {}));
  EXPECT_EQ(job.votes()[1].message(), "of rank 1") << "kept to the step's end";
}

TEST(RunningJobTest, AnAbortedStepIsOverWhenItsRanksHaveAnswered) {
  RunningJob job(kFloor);
  internal::v1::StepKey second = Key(1, 1);
  second.set_incarnation("w2");
  job.BeginUpdate("r", std::nullopt);
  job.Prepare(absl::UnixEpoch(), {Key(1, 1), second}, {});
  EXPECT_FALSE(job.TakeStopped(0, Key(1, 1))) << "nothing was aborted";
  EXPECT_EQ(job.Abort().at(1).key().incarnation(), "w2") << "a rank ignores what is another's";
  job.End();
  EXPECT_TRUE(job.exists());
  EXPECT_TRUE(job.ending());
  EXPECT_FALSE(job.Is("r")) << "its client was told";
  EXPECT_FALSE(job.is_update());
  EXPECT_FALSE(job.AwaitsVote(0, Key(1, 1)));
  EXPECT_FALSE(job.TakeStopped(0, Key(1, 2))) << "another attempt";
  EXPECT_FALSE(job.TakeStopped(0, "r")) << "no call job";
  EXPECT_TRUE(job.TakeStopped(1, second));
  EXPECT_FALSE(job.TakeStopped(1, second)) << "twice";
  job.Pass(kFloor);
  EXPECT_NE(job.Problem(), "") << "rank 0 stands still";
  EXPECT_TRUE(job.TakeStopped(0, Key(1, 1)));
  EXPECT_FALSE(job.exists());
  EXPECT_EQ(job.Problem(), "");
}

TEST(RunningJobTest, AnAbortedPassIsOverWhenItsRanksHaveAnsweredOrAreGone) {
  RunningJob job(kFloor);
  for (const bool lost : {false, true}) {
    job.BeginCallJob("~log-prob/1", "log-prob pass", {}, std::nullopt, /*num_ranks=*/2);
    EXPECT_FALSE(job.AddDone(1, absl::InternalError("could not"), 0));
    EXPECT_EQ(job.Abort().size(), 2U);
    job.End();
    EXPECT_TRUE(job.ending());
    EXPECT_FALSE(job.TakeStopped(1, "~log-prob/1")) << "it has ended before";
    EXPECT_FALSE(job.TakeStopped(0, "~log-prob/2")) << "another pass";
    if (lost) job.GenerationEnded();
    EXPECT_EQ(job.TakeStopped(0, "~log-prob/1"), !lost);
    EXPECT_FALSE(job.exists());
  }
  job.BeginCallJob("~log-prob/3", "log-prob pass", {}, std::nullopt, /*num_ranks=*/1);
  job.GenerationEnded();
  EXPECT_TRUE(job.exists()) << "what runs is retried, or answered, first";
}

TEST(RunningJobTest, AnAbortAfterTheLastAnswerLeavesNothingToWaitFor) {
  RunningJob job(kFloor);
  job.BeginUpdate("r", std::nullopt);
  job.Prepare(absl::UnixEpoch(), {Key(1, 1)}, {});
  EXPECT_TRUE(job.AddVote(0, {}));
  EXPECT_EQ(job.Abort().size(), 1U);
  job.End();
  EXPECT_FALSE(job.exists());
  job.BeginCallJob("~export/1", "export x", {}, std::nullopt, /*num_ranks=*/1);
  job.End();
  EXPECT_FALSE(job.exists()) << "the job before was aborted, not this one";
}

TEST(RunningJobTest, ACallJobFailsAsTheRankThatCouldNot) {
  RunningJob job(kFloor);
  job.BeginCallJob("~export/1", "export x", {}, std::nullopt, /*num_ranks=*/3);
  EXPECT_FALSE(job.AwaitsDone(3));
  EXPECT_FALSE(job.AddDone(0, absl::AbortedError("another rank could not"), 0));
  EXPECT_FALSE(job.AddDone(2, absl::OkStatus(), 5));
  EXPECT_FALSE(job.AwaitsDone(2)) << "it has ended";
  EXPECT_TRUE(job.AwaitsDone(1));
  EXPECT_TRUE(job.AddDone(1, absl::ResourceExhaustedError("the disk is full"), 7));
  EXPECT_EQ(job.failure(), absl::ResourceExhaustedError("the disk is full"));
  EXPECT_EQ(job.bytes(), 12u);
  job.End();
  job.BeginCallJob("~export/2", "export x", {}, std::nullopt, /*num_ranks=*/1);
  EXPECT_TRUE(job.AddDone(0, absl::OkStatus(), 3));
  EXPECT_EQ(job.failure(), absl::OkStatus());
  EXPECT_EQ(job.bytes(), 3u) << "of this job alone";
}

TEST(RunningJobTest, WhatTheServerKnowsOfACallJobsFailureComesBeforeWhatItsRanksSay) {
  RunningJob job(kFloor);
  job.BeginCallJob("~export/1", "export x", {}, std::nullopt, /*num_ranks=*/1);
  job.SetFailure(absl::ResourceExhaustedError("the disk is full"));
  EXPECT_TRUE(job.AddDone(0, absl::NotFoundError("there is no folder"), 0));
  EXPECT_EQ(job.failure(), absl::ResourceExhaustedError("the disk is full"));
  job.End();
  job.BeginCallJob("~export/2", "export x", {}, std::nullopt, /*num_ranks=*/1);
  EXPECT_TRUE(job.AddDone(0, absl::OkStatus(), 3));
  EXPECT_EQ(job.failure(), absl::OkStatus()) << "of this job alone";
}

TEST(RunningJobTest, ACallJobHasNoStep) {
  RunningJob job(kFloor);
  job.BeginCallJob("~export/1", "export x", {}, std::nullopt, /*num_ranks=*/1);
  EXPECT_TRUE(job.Is("~export/1"));
  EXPECT_FALSE(job.is_update());
  EXPECT_FALSE(job.AwaitsVote(0, {}));
  EXPECT_FALSE(job.AwaitsApplied(0, {}));
  EXPECT_FALSE(job.Attempts(0, {}));
  EXPECT_EQ(job.Abort().at(0).key().request_id(), "~export/1");
  EXPECT_THAT(job.AddResult({}), Invalid("a job that has none"));
}

TEST(RunningJobTest, EachPhaseIsWatchedByItselfAndNamed) {
  RunningJob job(kFloor);
  job.BeginUpdate("r", std::nullopt);
  job.Prepare(absl::UnixEpoch(), {Key(1, 1)}, {});
  job.Pass(kFloor - absl::Seconds(1));
  EXPECT_EQ(job.Problem(), "");
  job.Heard(/*progress=*/1, "suffix");
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
  job.Prepare(absl::UnixEpoch(), {Key(1, 1)}, {});
  job.Commit({}, v1::StepResult::APPLIED, {});
  EXPECT_DEATH(job.Abort(), "") << "a committed step is not aborted";
}

// By when events come a server that hung was awake, and by when it handles them one that is slow hears nobody.
TEST(CountedTimeTest, OnlyTimeInWhichTheServerListenedCounts) {
  const absl::Time start = absl::FromUnixSeconds(1000), awake = start + absl::Seconds(20);
  CountedTime time;
  time.Until(start);
  absl::Duration counted;
  for (int i = 1; i < 20; ++i) counted += time.Until(start + absl::Seconds(i), awake);
  EXPECT_EQ(counted, absl::Seconds(1)) << "that until the first one of those that came while it hung";
  counted += time.Until(awake, awake);
  for (int i = 0; i < 20; ++i) counted += time.Until(awake, awake + absl::Seconds(i));
  EXPECT_EQ(counted, absl::Seconds(1)) << "they came at once, and are handled a second each";
  EXPECT_EQ(time.Until(awake + absl::Seconds(20)), absl::Seconds(1));
}

}  // namespace
}  // namespace stemma::server
