#include "client/cli/local/restart_policy.h"

#include <string>

#include "gtest/gtest.h"

namespace stemma::cli {
namespace {

TEST(RestartPolicyTest, ThreeRestartsWithoutAReadyWorkerAreTheLast) {
  RestartPolicy policy;
  int previous_delay_ms = 0;
  for (int i = 0; i < RestartPolicy::kRestartsMax; ++i) {
    const RestartDecision decision = policy.ProcessEnded(1, "exit code 1");
    EXPECT_TRUE(decision.restart);
    EXPECT_GT(decision.delay_ms, previous_delay_ms);
    previous_delay_ms = decision.delay_ms;
  }
  EXPECT_FALSE(policy.ProcessEnded(1, "exit code 1").restart);
}

TEST(RestartPolicyTest, AReadyWorkerForgetsEarlierFailures) {
  RestartPolicy policy;
  for (int i = 0; i < 10; ++i) {
    EXPECT_TRUE(policy.ProcessEnded(-1, "signal 9 (Killed)").restart);
    EXPECT_TRUE(policy.ProcessEnded(-1, "signal 9 (Killed)").restart);
    policy.GangIsReady();
  }
}

TEST(RestartPolicyTest, RefusedConfigurationIsNotTriedAgain) {
  EXPECT_FALSE(RestartPolicy().ProcessEnded(2, "exit code 2").restart);
  EXPECT_FALSE(RestartPolicy().ProcessEnded(93, "exit code 93").restart);
}

TEST(RestartPolicyTest, AFollowerStartsWithTheLostWorkerAndIsNotCounted) {
  RestartPolicy policy;
  for (int i = 0; i < RestartPolicy::kRestartsMax; ++i) {
    const int delay_ms = policy.ProcessEnded(1, "exit code 1", "worker 0 of 9").delay_ms;
    for (int follower = 1; follower < 9; ++follower) {
      const RestartDecision decision = policy.FollowerEnded(1, "exit code 1", "worker 5 of 9");
      EXPECT_TRUE(decision.restart);
      EXPECT_EQ(decision.delay_ms, delay_ms);
      EXPECT_NE(decision.reason.find("worker 5 of 9"), std::string::npos) << decision.reason;
    }
  }
  EXPECT_FALSE(policy.ProcessEnded(1, "exit code 1", "worker 0 of 9").restart);
}

TEST(RestartPolicyTest, AFollowerWhoseConfigurationIsRefusedIsNotTriedAgain) {
  RestartPolicy policy;
  policy.ProcessEnded(-1, "signal 9 (Killed)");
  EXPECT_FALSE(policy.FollowerEnded(2, "exit code 2", "worker 1 of 2").restart);
  EXPECT_FALSE(policy.FollowerEnded(93, "exit code 93", "worker 1 of 2").restart);
}

TEST(RestartPolicyTest, WhatHasServedWaitsForAFullDiskAndIsNotCounted) {
  RestartPolicy policy;
  policy.GangIsReady();
  for (int i = 0; i < 100; ++i) {
    const RestartDecision decision = policy.ProcessEnded(94, "exit code 94", "the server");
    EXPECT_TRUE(decision.restart);
    EXPECT_EQ(decision.delay_ms, RestartPolicy::kNoRoomDelayMs);
    EXPECT_NE(decision.reason.find("the disk of --data is full"), std::string::npos) << decision.reason;
  }
  EXPECT_EQ(policy.ProcessEnded(1, "exit code 1").delay_ms, RestartPolicy().ProcessEnded(1, "exit code 1").delay_ms);
  RestartPolicy at_start;
  for (int i = 0; i < RestartPolicy::kRestartsMax; ++i) EXPECT_TRUE(at_start.ProcessEnded(94, "exit code 94").restart);
  EXPECT_FALSE(at_start.ProcessEnded(94, "exit code 94").restart) << "nobody has a run there yet";
}

TEST(RestartPolicyTest, WhatHasServedIsNotRefusedForGood) {
  RestartPolicy policy;
  policy.GangIsReady();
  EXPECT_TRUE(policy.FollowerEnded(2, "exit code 2", "worker 1 of 2").restart);
  for (int i = 0; i < RestartPolicy::kRestartsMax; ++i) {
    EXPECT_TRUE(policy.ProcessEnded(2, "exit code 2").restart);
  }
  EXPECT_FALSE(policy.ProcessEnded(2, "exit code 2").restart) << "it stays refused";
  EXPECT_FALSE(policy.ProcessEnded(93, "exit code 93").restart);
}

}  // namespace
}  // namespace stemma::cli
