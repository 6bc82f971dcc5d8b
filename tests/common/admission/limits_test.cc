// Every limit at its edge: exactly as much as it allows is accepted, one more is refused.
#include <functional>
#include <string>

#include "common/base/arrays.h"
#include "common/base/error.h"
#include "common/base/message_sizes.h"
#include "gtest/gtest.h"
#include "tests/common/admission/sent_stream.h"

namespace stemma {
namespace {

struct Edge {
  std::string name;
  std::string refused_for;  // the reason of one more
  std::function<void(Stream&, uint64_t)> set;
  uint64_t last;      // the value that is accepted
  int64_t direction;  // +1: a larger value is refused; -1: a smaller one
};

class LimitEdgeTest : public ::testing::TestWithParam<Edge> {};

TEST_P(LimitEdgeTest, ExactlyTheLimitIsAcceptedAndOneMoreIsRefused) {
  const Edge& edge = GetParam();
  Stream at, beyond;
  edge.set(at, edge.last);
  edge.set(beyond, static_cast<uint64_t>(static_cast<int64_t>(edge.last) + edge.direction));
  EXPECT_TRUE(Build(at).ok()) << Build(at).status();
  EXPECT_EQ(ErrorReason(Build(beyond).status()), edge.refused_for) << Build(beyond).status();
}

void SetResponse(v1::Rollout& rollout, uint64_t tokens) {
  rollout.set_response_tokens(PackArray(std::vector<int32_t>(tokens, 7)));
  rollout.clear_response_mask();
  rollout.set_old_log_probs(PackArray(std::vector<float>(tokens, -1)));
  rollout.set_ref_log_prob(PackArray(std::vector<float>(tokens, -1)));
}

void SetGroups(Stream& stream, uint64_t count) {
  stream.groups.clear();
  for (uint64_t g = 0; g < count; ++g) stream.groups.push_back(GoodGroup("g" + std::to_string(g)));
  stream.end_groups = count;
  stream.end_rollouts = 2 * count;
}

// Where neither the context nor the number of tokens is the limit.
Stream& Roomy(Stream& stream) {
  stream.positions = 1 << 30;
  stream.limits.set_tokens(1 << 30);
  return stream;
}

// Steps of `groups` groups, `mini_batch` at a time, under a limit of 6.
std::function<void(Stream&, uint64_t)> StepsOfEpochs(uint64_t groups, uint64_t mini_batch) {
  return [groups, mini_batch](Stream& stream, uint64_t epochs) {
    SetGroups(stream, groups);
    stream.limits.set_steps(6);
    stream.header.set_ppo_mini_batch_size(mini_batch);
    stream.header.set_ppo_epochs(static_cast<uint32_t>(epochs));
  };
}

// Two groups in as many epochs.
std::function<void(Stream&, uint64_t)> ShuffledEpochs(uint64_t planned_groups) {
  return [planned_groups](Stream& stream, uint64_t epochs) {
    stream.header.set_ppo_epochs(static_cast<uint32_t>(epochs));
    stream.header.set_shuffle(true);
    stream.header.set_seed(1);
    stream.limits.set_planned_groups(planned_groups);
  };
}

INSTANTIATE_TEST_SUITE_P(
    Edges, LimitEdgeTest,
    ::testing::Values(
        Edge{"Groups", "LIMIT_EXCEEDED", [](Stream& s, uint64_t v) { s.limits.set_groups(v); }, 2, -1},
        Edge{"Rollouts", "LIMIT_EXCEEDED", [](Stream& s, uint64_t v) { s.limits.set_rollouts(v); }, 4, -1},
        Edge{"Tokens", "LIMIT_EXCEEDED", [](Stream& s, uint64_t v) { s.limits.set_tokens(v); }, 18, -1},
        Edge{"StringBytes", "INVALID_REQUEST", [](Stream& s, uint64_t v) { s.limits.set_string_bytes(v); }, 3, -1},
        Edge{"FullContext", "INVALID_REQUEST", [](Stream& s, uint64_t response) { SetResponse(s.rollout(), response); },
             kPositions - 3, +1},
        Edge{"ResultOfOneRollout", "INVALID_REQUEST",
             [](Stream& s, uint64_t response) { SetResponse(Roomy(s).rollout(), response); },
             kUncutBytesMax / kResultBytesPerToken, +1},
        Edge{"OnePrompt", "INVALID_REQUEST",
             [](Stream& s, uint64_t prompt) {
               Roomy(s).groups[0].set_prompt_tokens(PackArray(std::vector<int32_t>(prompt, 7)));
             },
             kUncutBytesMax / sizeof(int32_t), +1},
        Edge{"StepsOfWholeMiniBatches", "LIMIT_EXCEEDED", StepsOfEpochs(/*groups=*/4, /*mini_batch=*/2), 3, +1},
        Edge{"StepsWithAShortLastMiniBatch", "LIMIT_EXCEEDED", StepsOfEpochs(/*groups=*/5, /*mini_batch=*/2), 2, +1},
        Edge{"StepsOfAMiniBatchLargerThanTheRequest", "LIMIT_EXCEEDED", StepsOfEpochs(/*groups=*/2, /*mini_batch=*/9),
             6, +1},
        Edge{"PlannedGroupsOfShuffledEpochs", "LIMIT_EXCEEDED", ShuffledEpochs(/*planned_groups=*/6), 3, +1},
        Edge{"PlannedRolloutsOfShuffledEpochs", "LIMIT_EXCEEDED",
             [](Stream& s, uint64_t rollouts) {
               ShuffledEpochs(/*planned_groups=*/4)(s, 2);  // 64 rollouts over both epochs
               for (uint64_t r = 4; r < rollouts; ++r) {
                 *s.groups[0].add_rollouts() = GoodRollout("more/" + std::to_string(r));
               }
               s.end_rollouts = rollouts;
             },
             32, +1},
        Edge{"LastTokenOfTheVocabulary", "INVALID_REQUEST",
             [](Stream& s, uint64_t token) {
               s.groups[0].set_prompt_tokens(PackArray<int32_t>({1, 2, static_cast<int32_t>(token)}));
             },
             kVocab - 1, +1}),
    [](const auto& test) { return test.param.name; });

// 5 groups in mini-batches of 2, twice: the short last mini-batch of each epoch is a step too.
TEST(LimitEdgeTest, AShortLastMiniBatchIsAStepOfItsOwn) {
  Stream stream;
  StepsOfEpochs(/*groups=*/5, /*mini_batch=*/2)(stream, 2);
  stream.limits.set_steps(5);
  EXPECT_EQ(ErrorReason(Build(stream).status()), "LIMIT_EXCEEDED");
}

TEST(LimitEdgeTest, EqualEpochsCountOnceAmongThePlannedGroups) {
  Stream stream;
  ShuffledEpochs(/*planned_groups=*/2)(stream, 9);
  EXPECT_EQ(ErrorReason(Build(stream).status()), "LIMIT_EXCEEDED");
  stream.header.set_shuffle(false);
  stream.header.clear_seed();
  EXPECT_TRUE(Build(stream).ok()) << Build(stream).status();
  EXPECT_EQ((*Build(stream))->num_steps, 9u);
}

TEST(LimitEdgeTest, TheTracedStepIsOneOfTheRequest) {
  Stream stream;
  SetGroups(stream, 3);
  stream.header.set_ppo_mini_batch_size(2);
  stream.header.set_ppo_epochs(2);
  stream.header.set_trace_step(3);
  EXPECT_TRUE(Build(stream).ok()) << Build(stream).status();
  stream.header.set_trace_step(4);
  const absl::Status status = Build(stream).status();
  EXPECT_EQ(ErrorReason(status), "INVALID_REQUEST");
  EXPECT_EQ(GetErrorDetails(status).field, "update.trace_step");
}

TEST(LimitEdgeTest, OnPolicyNeedsOneStepAndAShortLastMiniBatchIsASecond) {
  Stream stream;
  SetGroups(stream, 3);
  stream.header.mutable_old()->set_from(v1::LogProbSource::ON_POLICY);
  for (v1::PromptGroup& group : stream.groups) {
    for (v1::Rollout& rollout : *group.mutable_rollouts()) rollout.clear_old_log_probs();
  }
  stream.header.set_ppo_mini_batch_size(3);
  EXPECT_TRUE(Build(stream).ok()) << Build(stream).status();
  stream.header.set_ppo_mini_batch_size(2);
  EXPECT_EQ(ErrorReason(Build(stream).status()), "UNSUPPORTED");
}

}  // namespace
}  // namespace stemma
