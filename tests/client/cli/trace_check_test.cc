#include "client/cli/trace_check.h"

#include <limits>

#include "common/arrays.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace stemma {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TraceRequest Good() {
  TraceRequest request;
  request.header.mutable_loss()->set_loss_mode("vanilla");
  request.header.mutable_loss()->set_loss_agg_mode("token-mean");
  request.header.mutable_adam()->set_learning_rate(1e-6);
  v1::PromptGroup& group = request.groups.emplace_back();
  group.set_uid("g0");
  group.set_prompt_tokens(PackArray(std::vector<int32_t>{5, 6}));
  v1::Rollout& rollout = *group.add_rollouts();
  rollout.set_rollout_id("g0/0");
  rollout.set_response_tokens(PackArray(std::vector<int32_t>{7, 8}));
  rollout.set_old_log_probs(PackArray(std::vector<float>{-1, -2}));
  return request;
}

TEST(TraceCheckTest, AGoodRequestHasNoProblems) { EXPECT_TRUE(CheckRequest(Good()).empty()); }

TEST(TraceCheckTest, EveryProblemIsReportedWithItsPath) {
  TraceRequest request = Good();
  request.header.mutable_loss()->set_loss_mode("ppo2");
  request.groups.push_back(request.groups[0]);
  request.groups[1].mutable_rollouts(0)->set_old_log_probs(PackArray(std::vector<float>{-1}));
  EXPECT_THAT(CheckRequest(request),
              ElementsAre(HasSubstr("header.loss.loss_mode"), HasSubstr("groups[1].uid"),
                          HasSubstr("groups[1].rollouts[0].rollout_id"),
                          HasSubstr("groups[1].rollouts[0].old_log_probs: has 1 numbers, the response 2 tokens")));
}

TEST(TraceCheckTest, NumbersThatAreNotFiniteAreFound) {
  TraceRequest request = Good();
  request.groups[0].mutable_rollouts(0)->set_advantage(std::numeric_limits<double>::quiet_NaN());
  EXPECT_THAT(CheckRequest(request), ElementsAre(HasSubstr("groups[0].rollouts[0].advantage")));
}

TEST(TraceCheckTest, AnEmptyPromptAndNegativeTokensAreFound) {
  TraceRequest request = Good();
  request.groups[0].set_prompt_tokens("");
  request.groups[0].mutable_rollouts(0)->set_response_tokens(PackArray(std::vector<int32_t>{7, -1}));
  EXPECT_THAT(CheckRequest(request), ElementsAre(HasSubstr("prompt_tokens: is empty"), HasSubstr("token 1 is -1")));
}

}  // namespace
}  // namespace stemma
