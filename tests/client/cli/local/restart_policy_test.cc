#include "client/cli/local/restart_policy.h"

#include "gtest/gtest.h"

namespace stemma::cli {
namespace {

TEST(RestartPolicyTest, ThreeRestartsWithoutAReadyWorkerAreTheLast) {
  RestartPolicy policy;
  int previous_delay_ms = 0;
  for (int i = 0; i < RestartPolicy::kRestartsMax; ++i) {
    const RestartDecision decision = policy.WorkerEnded(1, "exit code 1");
    EXPECT_TRUE(decision.restart);
    EXPECT_GT(decision.delay_ms, previous_delay_ms);
    previous_delay_ms = decision.delay_ms;
  }
  EXPECT_FALSE(policy.WorkerEnded(1, "exit code 1").restart);
}

TEST(RestartPolicyTest, AReadyWorkerForgetsEarlierFailures) {
  RestartPolicy policy;
  for (int i = 0; i < 10; ++i) {
    EXPECT_TRUE(policy.WorkerEnded(-1, "signal 9 (Killed)").restart);
    EXPECT_TRUE(policy.WorkerEnded(-1, "signal 9 (Killed)").restart);
    policy.WorkerIsReady();
  }
}

TEST(RestartPolicyTest, RefusedConfigurationIsNotTriedAgain) {
  EXPECT_FALSE(RestartPolicy().WorkerEnded(2, "exit code 2").restart);
  EXPECT_FALSE(RestartPolicy().WorkerEnded(93, "exit code 93").restart);
}

}  // namespace
}  // namespace stemma::cli
