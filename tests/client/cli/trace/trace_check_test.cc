#include "client/cli/trace/trace_check.h"

#include <functional>
#include <limits>
#include <map>
#include <string>
#include <utility>

#include "client/cli/trace/synthetic_trace.h"
#include "common/base/arrays.h"
#include "common/trace/loss_names.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace stemma::cli {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

TraceRequest Synthetic(const std::string& mode, const std::string& agg_mode, double kl, double entropy) {
  SyntheticTraceOptions options;
  options.vocab_size = 64;
  options.loss_mode = mode;
  options.loss_agg_mode = agg_mode;
  options.kl_loss_coef = kl;
  options.entropy_coeff = entropy;
  options.prompt_tokens = *LengthDistribution::Parse("fixed:5");
  options.response_tokens = *LengthDistribution::Parse("uniform:1:7");
  options.rollouts = *LengthDistribution::Parse("fixed:3");
  const v1::UpdateHeader header = *SyntheticHeader(options);
  TraceRequest request = {.header = header, .groups = SyntheticGroups(options, header, 0).value()};
  request.header.mutable_request()->set_request_id("trace/1");
  return request;
}

TraceRequest Good() { return Synthetic("vanilla", "token-mean", 0, 0); }

std::vector<std::string> Problems(const TraceRequest& request, const TraceRules& rules = DefaultTraceRules()) {
  return CheckRequest(request, rules).texts;
}

TEST(TraceCheckTest, WhatMakeWritesHasNoProblemsUnderEveryLoss) {
  for (const auto& mode : LossModeNames()) {
    for (const auto& agg_mode : AggModeNames()) {
      for (const double kl : {0.0, 0.01}) {
        const TraceRequest request = Synthetic(std::string(mode), std::string(agg_mode), kl, /*entropy=*/0.1);
        EXPECT_THAT(Problems(request), ElementsAre()) << mode << " " << agg_mode << " kl " << kl;
      }
    }
  }
}

// The header's field that each change breaks, as a trace names it.
TEST(TraceCheckTest, HeadersThatTheServerRefusesAreRefused) {
  const std::map<std::string, std::function<void(v1::UpdateHeader&)>> breaks = {
      {"header.loss.temperature: is -1, must be above 0", [](auto& h) { h.mutable_loss()->set_temperature(-1); }},
      {"header.loss.temperature: is missing", [](auto& h) { h.mutable_loss()->clear_temperature(); }},
      {"header.adam.beta1: is 1.5, must be in [0, 1)", [](auto& h) { h.mutable_adam()->set_beta1(1.5); }},
      {"header.adam.learning_rate: is -1, must be", [](auto& h) { h.mutable_adam()->set_learning_rate(-1); }},
      {"header.loss.clip_ratio_low: is missing", [](auto& h) { h.mutable_loss()->clear_clip_ratio_low(); }},
      {"header.loss.loss_mode", [](auto& h) { h.mutable_loss()->set_loss_mode("ppo2"); }},
      {"header.old: is missing", [](auto& h) { h.clear_old(); }},
      {"header.old.weights: is set", [](auto& h) { h.mutable_old()->set_weights("policy"); }},
      {"header.seed: is missing", [](auto& h) { h.set_shuffle(true); }},
  };
  for (const auto& [problem, change] : breaks) {
    TraceRequest request = Good();
    change(request.header);
    EXPECT_THAT(Problems(request), ElementsAre(StartsWith(problem)));
  }
}

TEST(TraceCheckTest, EveryProblemIsReportedWithItsPath) {
  TraceRequest request = Good();
  request.header.mutable_adam()->set_beta2(1);
  request.groups[1].set_uid(request.groups[0].uid());
  request.groups[1].mutable_rollouts(0)->set_old_log_probs(PackArray(std::vector<float>{-1}));
  request.groups[2].mutable_rollouts(1)->clear_old_log_probs();
  EXPECT_THAT(Problems(request), ElementsAre(StartsWith("header.adam.beta2"), StartsWith("groups[1].uid"),
                                             StartsWith("groups[1].rollouts[0].old_log_probs"),
                                             StartsWith("groups[2].rollouts[1].old_log_probs: is missing")));
}

TEST(TraceCheckTest, NumbersThatAreNotFiniteAreFound) {
  TraceRequest request = Good();
  request.groups[0].mutable_rollouts(0)->set_advantage(std::numeric_limits<double>::quiet_NaN());
  EXPECT_THAT(Problems(request), ElementsAre(StartsWith("groups[0].rollouts[0].advantage")));
}

TEST(TraceCheckTest, EmptyRequestsGroupsAndPromptsAreFound) {
  TraceRequest request = Good();
  request.groups[0].set_prompt_tokens("");
  request.groups[1].clear_rollouts();
  EXPECT_THAT(Problems(request),
              ElementsAre(StartsWith("groups[0].prompt_tokens: is empty"), StartsWith("groups[1].rollouts: is empty")));
  request.groups.clear();
  EXPECT_THAT(Problems(request), ElementsAre(StartsWith("groups: is empty")));
}

TEST(TraceCheckTest, AModelBoundsTokensAndLengths) {
  TraceRequest request = Good();
  request.groups[0].set_prompt_tokens(PackArray(std::vector<int32_t>{1, 64}));
  TraceRules rules = DefaultTraceRules();
  EXPECT_THAT(Problems(request, rules), ElementsAre());
  rules.model.vocab_size = 64;
  EXPECT_THAT(Problems(request, rules), ElementsAre(HasSubstr("is token 64, the vocabulary has 64")));
  request = Good();
  rules.model.max_positions = 5;
  EXPECT_EQ(CheckRequest(request, rules).count, 12u);  // four groups of three, none of an empty response
}

TEST(TraceCheckTest, LimitsAreTheServers) {
  TraceRules rules = DefaultTraceRules();
  rules.limits.set_rollouts(12);
  EXPECT_THAT(Problems(Good(), rules), ElementsAre());
  rules.limits.set_rollouts(11);
  EXPECT_THAT(Problems(Good(), rules), ElementsAre(HasSubstr("limits.rollouts")));
  rules = DefaultTraceRules();
  TraceRequest request = Good();
  request.header.set_ppo_epochs(5000);
  EXPECT_THAT(Problems(request, rules), ElementsAre(HasSubstr("limits.steps")));
}

// The server refuses it when it plans, after the stream was taken.
TEST(TraceCheckTest, AStatGroupThatIsCutByMiniBatchesIsFound) {
  TraceRequest request = Synthetic("vanilla", "prompt-mean", 0, 0);
  for (v1::PromptGroup& group : request.groups) group.set_stat_group("one");
  EXPECT_THAT(Problems(request), ElementsAre());
  request.header.set_ppo_mini_batch_size(2);
  EXPECT_THAT(Problems(request), ElementsAre(HasSubstr("stat_group")));
}

TEST(TraceCheckTest, ProblemsBeyondTwentyAreCounted) {
  TraceRequest request = Good();
  for (int i = 0; i < 20; ++i) {
    request.groups.push_back(request.groups[0]);
    request.groups.back().set_uid(std::to_string(i));
    request.groups.back().clear_rollouts();
  }
  request.header.mutable_adam()->set_beta1(2);
  const TraceProblems problems = CheckRequest(request, DefaultTraceRules());
  EXPECT_EQ(problems.count, 21u);
  EXPECT_EQ(problems.texts.size(), 20u);
}

}  // namespace
}  // namespace stemma::cli
