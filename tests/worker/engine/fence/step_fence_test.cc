// The worker's side of the step protocol: what belongs to another attempt, incarnation, generation or epoch is
// powerless.
#include "worker/engine/fence/step_fence.h"

#include <functional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace stemma::worker {
namespace {

using internal::v1::StepKey;
using ::testing::HasSubstr;

StepKey Key(uint64_t step, uint32_t attempt) {
  StepKey key;
  key.set_epoch(7);
  key.set_incarnation("w1");
  key.set_generation(3);
  key.set_step(step);
  key.set_attempt(attempt);
  key.set_request_id("run/1");
  return key;
}

StepFence Fence() { return StepFence({.epoch = 7, .generation = 3, .incarnation = "w1", .step = 10}); }

StepFence VotedFence() {
  StepFence fence = Fence();
  fence.OnPrepare(Key(11, 1));
  fence.OnVote(Key(11, 1));
  return fence;
}

struct WrongKey {
  std::string name;
  std::function<void(StepKey&)> change;
};

const std::vector<WrongKey>& WrongKeys() {
  static const auto* keys = new std::vector<WrongKey>{
      {"epoch", [](StepKey& key) { key.set_epoch(6); }},
      {"incarnation", [](StepKey& key) { key.set_incarnation("w0"); }},
      {"generation", [](StepKey& key) { key.set_generation(2); }},
      {"step behind", [](StepKey& key) { key.set_step(10); }},
      {"step ahead", [](StepKey& key) { key.set_step(12); }},
  };
  return *keys;
}

TEST(StepFenceTest, AStepIsPreparedVotedAndAppliedOnce) {
  StepFence fence = Fence();
  ASSERT_TRUE(fence.CheckPrepare(Key(11, 1)).ok());
  fence.OnPrepare(Key(11, 1));
  fence.OnVote(Key(11, 1));
  ASSERT_TRUE(fence.CheckApply(Key(11, 1)).ok());
  fence.OnApplied(Key(11, 1), /*discard=*/false);
  EXPECT_EQ(fence.step(), 11u);
  EXPECT_EQ(fence.CheckApply(Key(11, 1)).code(), absl::StatusCode::kAborted) << "a repeated Apply steps twice";
  EXPECT_TRUE(fence.CheckPrepare(Key(12, 1)).ok());
}

TEST(StepFenceTest, PrepareOfAnotherEpochIncarnationGenerationOrStepIsRefused) {
  for (const WrongKey& wrong : WrongKeys()) {
    StepKey key = Key(11, 1);
    wrong.change(key);
    EXPECT_EQ(Fence().CheckPrepare(key).code(), absl::StatusCode::kAborted) << wrong.name;
  }
}

TEST(StepFenceTest, ApplyOfAnotherEpochIncarnationGenerationOrStepIsRefused) {
  for (const WrongKey& wrong : WrongKeys()) {
    StepKey key = Key(11, 1);
    wrong.change(key);
    EXPECT_EQ(VotedFence().CheckApply(key).code(), absl::StatusCode::kAborted) << wrong.name;
  }
}

TEST(StepFenceTest, ApplyOfAnotherAttemptRequestOrIndexIsRefused) {
  const StepFence fence = VotedFence();
  EXPECT_THAT(std::string(fence.CheckApply(Key(11, 2)).message()), HasSubstr("attempt 2"));
  StepKey other_request = Key(11, 1);
  other_request.set_request_id("run/2");
  EXPECT_FALSE(fence.CheckApply(other_request).ok());
  StepKey other_k = Key(11, 1);
  other_k.set_k(1);
  EXPECT_FALSE(fence.CheckApply(other_k).ok());
  EXPECT_TRUE(fence.CheckApply(Key(11, 1)).ok());
}

TEST(StepFenceTest, ApplyBeforeTheVoteIsRefused) {
  StepFence fence = Fence();
  EXPECT_FALSE(fence.CheckApply(Key(11, 1)).ok());
  fence.OnPrepare(Key(11, 1));
  EXPECT_FALSE(fence.CheckApply(Key(11, 1)).ok());
}

TEST(StepFenceTest, PrepareOfAnAttemptSeenBeforeIsRefusedAndANewerOneReplacesIt) {
  StepFence fence = VotedFence();
  EXPECT_FALSE(fence.CheckPrepare(Key(11, 1)).ok());
  ASSERT_TRUE(fence.CheckPrepare(Key(11, 2)).ok());
  fence.OnPrepare(Key(11, 2));
  EXPECT_FALSE(fence.CheckApply(Key(11, 1)).ok()) << "the vote of attempt 1 died with it";
  fence.OnVote(Key(11, 2));
  EXPECT_FALSE(fence.CheckApply(Key(11, 1)).ok());
  EXPECT_TRUE(fence.CheckApply(Key(11, 2)).ok());
}

TEST(StepFenceTest, ADiscardedStepDoesNotAdvance) {
  StepFence fence = VotedFence();
  fence.OnApplied(Key(11, 1), /*discard=*/true);
  EXPECT_EQ(fence.step(), 10u);
}

// A discarded step moves no weights, so the next step of the request has its number, and attempts of its own.
TEST(StepFenceTest, TheStepAfterADiscardedOneBeginsWithItsFirstAttempt) {
  StepFence fence = VotedFence();
  fence.OnApplied(Key(11, 1), /*discard=*/true);
  EXPECT_EQ(fence.CheckPrepare(Key(11, 1)).code(), absl::StatusCode::kAborted);
  StepKey next = Key(11, 1), other = Key(11, 1);
  next.set_k(1);
  other.set_request_id("run/2");
  EXPECT_TRUE(fence.CheckPrepare(next).ok());
  EXPECT_TRUE(fence.CheckPrepare(other).ok());
}

TEST(StepFenceTest, AbortDropsOnlyItsOwnAttempt) {
  StepFence fence = VotedFence();
  EXPECT_FALSE(fence.OnAbort(Key(11, 2)));
  EXPECT_TRUE(fence.CheckApply(Key(11, 1)).ok());
  EXPECT_TRUE(fence.OnAbort(Key(11, 1)));
  EXPECT_FALSE(fence.CheckApply(Key(11, 1)).ok());
  EXPECT_FALSE(fence.OnAbort(Key(11, 1)));
}

}  // namespace
}  // namespace stemma::worker
