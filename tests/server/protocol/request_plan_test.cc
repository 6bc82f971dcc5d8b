// What of a request decides its plan: schedule, mini-batches, epochs, where log-probs come from.
#include "server/protocol/request_plan.h"

#include <string>
#include <utility>
#include <vector>

#include "common/base/error.h"
#include "gtest/gtest.h"
#include "tests/server/planner/cluster_shapes.h"

namespace stemma::server {
namespace {

// Two groups with a prompt of 200 tokens and two responses each.
TrainingRequest TwoGroups(size_t response_tokens = 30) {
  TrainingRequest request;
  v1::UpdateHeader& header = request.update;
  header.mutable_loss()->set_loss_mode("vanilla");
  header.mutable_loss()->set_loss_agg_mode("token-mean");
  header.mutable_old()->set_from(v1::LogProbSource::CLIENT);
  for (const char* uid : {"a", "b"}) {
    v1::PromptGroup& group = request.groups.emplace_back();
    group.set_uid(uid);
    group.set_prompt_tokens(std::string(4 * 200, '\1'));
    for (int i = 0; i < 2; ++i) {
      v1::Rollout& rollout = *group.add_rollouts();
      rollout.set_rollout_id(uid + std::to_string(i));
      rollout.set_response_tokens(std::string(4 * response_tokens, '\1'));
      rollout.set_advantage(1);
    }
  }
  request.digest = "digest";
  return request;
}

absl::StatusOr<RequestPlan> PlannedIn(uint64_t budget_bytes, const TrainingRequest& request,
                                      v1::Schedule server = v1::REUSE) {
  v1::RunConfig run;
  run.set_dtype("fp32");
  run.set_head_chunk_tokens(512);
  run.set_memory_budget_bytes(budget_bytes);
  run.set_schedule(server);
  return MakePlanFunction(testing::BenchModel())(request, run, testing::BenchRates(), {});
}

RequestPlan Planned(const TrainingRequest& request, v1::Schedule server = v1::REUSE) {
  absl::StatusOr<RequestPlan> plan = PlannedIn(uint64_t{8} << 30, request, server);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? *std::move(plan) : RequestPlan();
}

TEST(RequestPlanTest, TheRequestsScheduleGoesBeforeTheServers) {
  TrainingRequest request = TwoGroups();
  EXPECT_EQ(Planned(request).report.groups_reuse(), 2u);
  request.update.mutable_request()->set_schedule(v1::DENSE);
  EXPECT_EQ(Planned(request).report.groups_dense(), 2u);
  request.update.mutable_request()->set_schedule(v1::REUSE);
  EXPECT_EQ(Planned(request, v1::DENSE).report.groups_reuse(), 2u);
}

TEST(RequestPlanTest, WeightsAsTheSourceOfEitherLogProbsNeedAnEntryPass) {
  TrainingRequest request = TwoGroups();
  EXPECT_FALSE(Planned(request).plan.has_log_prob_pass());
  request.update.mutable_ref()->set_from(v1::LogProbSource::CLIENT);
  EXPECT_FALSE(Planned(request).plan.has_log_prob_pass());
  request.update.mutable_ref()->set_from(v1::LogProbSource::WEIGHTS);
  request.update.mutable_ref()->set_weights("policy");
  EXPECT_TRUE(Planned(request).plan.has_log_prob_pass());
  request.update.clear_ref();
  request.update.mutable_old()->set_from(v1::LogProbSource::WEIGHTS);
  request.update.mutable_old()->set_weights("policy");
  EXPECT_TRUE(Planned(request).plan.has_log_prob_pass());
}

TEST(RequestPlanTest, APassRunsForEachOfTheWeightsAndBesideThoseOfACheckpoint) {
  TrainingRequest request = TwoGroups();
  v1::LogProbSource &old = *request.update.mutable_old(), &ref = *request.update.mutable_ref();
  for (v1::LogProbSource* source : {&old, &ref}) {
    source->set_from(v1::LogProbSource::WEIGHTS);
    source->set_weights("policy");
  }
  const v1::PlanReport once = Planned(request).report;
  EXPECT_EQ(once.log_prob_passes(), 1u);
  EXPECT_EQ(once.checkpoint_weights_bytes(), 0u);
  ref.set_weights("start");
  const v1::PlanReport twice = Planned(request).report;
  EXPECT_EQ(twice.log_prob_passes(), 2u);
  EXPECT_EQ(twice.checkpoint_weights_bytes(), twice.state().weights());
  EXPECT_EQ(twice.steps(0).peak_bytes(), once.steps(0).peak_bytes() + twice.state().weights());
  EXPECT_EQ(twice.steps(1).peak_bytes(), once.steps(1).peak_bytes()) << "they are gone before the first step";
  EXPECT_EQ(twice.flops(), once.flops() + once.steps(0).flops());
  EXPECT_GT(twice.seconds().suffix(), once.seconds().suffix());
}

// Nothing of a verification's first run differs from what training would do; the second is dense, beside its gradients.
TEST(RequestPlanTest, AVerificationHasTheStepsPlanAndADenseOneBesideItsGradients) {
  TrainingRequest request = TwoGroups();
  request.update.mutable_request()->set_schedule(v1::REUSE);
  const RequestPlan reuse = Planned(request);
  request.update.mutable_request()->set_schedule(v1::DENSE);
  const RequestPlan dense = Planned(request);
  EXPECT_EQ(dense.dense, nullptr);
  request.kind = TrainingRequest::Kind::kVerify;
  request.update.mutable_request()->clear_schedule();
  const RequestPlan both = Planned(request, v1::DENSE);  // what the server trains with is no part of the question
  EXPECT_EQ(both.plan.SerializeAsString(), reuse.plan.SerializeAsString());
  EXPECT_EQ(both.report.SerializeAsString(), reuse.report.SerializeAsString());
  ASSERT_NE(both.dense, nullptr);
  EXPECT_EQ(both.dense->plan.SerializeAsString(), dense.plan.SerializeAsString());
  EXPECT_EQ(both.dense->numbers(0).denominator, reuse.numbers(0).denominator);
  const uint64_t held = both.dense->report.state().gradients();  // one rank: it owns all of them
  EXPECT_GT(held, 0u);
  EXPECT_EQ(both.dense->report.steps(0).peak_bytes(), dense.report.steps(0).peak_bytes() + held);
  // A step that fits the budget alone does not beside so much, and the error says which run it is.
  const uint64_t tight = dense.report.state().device() + held / 2;
  request.kind = TrainingRequest::Kind::kUpdate;
  EXPECT_TRUE(PlannedIn(tight, request).ok()) << PlannedIn(tight, request).status();
  request.kind = TrainingRequest::Kind::kVerify;
  const absl::Status none = PlannedIn(tight, request).status();
  EXPECT_TRUE(HasReason(none, Reason::kGroupTooLarge)) << none;
  EXPECT_EQ(none.message().substr(0, 6), "dense,") << none;
}

// The head takes 512 rows at a time: of 1,100 two chunks run again once the last is known, which costs their forward.
TEST(RequestPlanTest, ALossOverWholeResponsesRunsTheHeadOfLongOnesTwice) {
  for (const auto& [response_tokens, rows_again] :
       std::vector<std::pair<size_t, double>>{{30, 0}, {512, 0}, {1100, 1024}}) {
    TrainingRequest request = TwoGroups(response_tokens);
    const double once_s = Planned(request).report.seconds().suffix();
    request.update.mutable_loss()->set_loss_mode("gspo");
    const double twice_s = Planned(request).report.seconds().suffix();
    const ModelConfig config = testing::BenchModel();
    const double flops = 4 * 2 * rows_again * static_cast<double>(config.hidden_size * config.vocab_size);
    EXPECT_NEAR(twice_s - once_s, flops * testing::BenchRates()[kHead], 1e-9 * once_s) << response_tokens;
  }
}

TEST(RequestPlanTest, EpochsAndMiniBatchesAreStepsWithNumbersOfTheirOwn) {
  TrainingRequest request = TwoGroups();
  request.groups[1].mutable_rollouts(0)->clear_response_tokens();
  request.update.set_ppo_epochs(3);
  request.update.set_ppo_mini_batch_size(1);
  const RequestPlan planned = Planned(request);
  ASSERT_EQ(planned.num_steps(), 6u);
  for (uint32_t k = 0; k < 6; ++k) {
    const bool first = planned.step(k).groups(0) == 0;
    EXPECT_EQ(first, k % 2 == 0);
    EXPECT_EQ(planned.epoch(k), k / 2);
    EXPECT_EQ(planned.numbers(k).denominator, first ? 60 : 30) << k;
    EXPECT_EQ(planned.numbers(k).total_tokens, first ? 460u : 430u) << "each rollout counts its prompt; step " << k;
  }
}

TEST(RequestPlanTest, AShuffleFollowsTheRequestsSeed) {
  TrainingRequest request = TwoGroups();
  for (int g = 2; g < 12; ++g) {
    request.groups.push_back(request.groups[0]);
    request.groups.back().set_uid(std::to_string(g));
  }
  const auto order = [&](bool shuffle, uint64_t seed) {
    request.update.set_shuffle(shuffle);
    request.update.set_seed(seed);
    const auto groups = Planned(request).plan.steps(0).groups();
    return std::vector<uint32_t>(groups.begin(), groups.end());
  };
  EXPECT_NE(order(true, 1), order(false, 1));
  EXPECT_NE(order(true, 1), order(true, 2));
  EXPECT_EQ(order(true, 2), order(true, 2));
}

TEST(RequestPlanTest, ALogProbRequestRunsEveryResponseOnceAndForwardOnly) {
  TrainingRequest request = TwoGroups();
  request.kind = TrainingRequest::Kind::kLogProb;
  for (v1::Rollout& rollout : *request.groups[0].mutable_rollouts()) rollout.set_advantage(0);
  const RequestPlan planned = Planned(request);
  EXPECT_EQ(planned.plan.steps_size(), 1);
  EXPECT_EQ(planned.report.rollouts_run(), 4u);
  EXPECT_EQ(planned.report.seconds().prefix_backward(), 0);
}

}  // namespace
}  // namespace stemma::server
