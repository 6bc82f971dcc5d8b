// The simulator against other words for the same: the planner's seconds and its timeline of shared groups, where wires
// take no time; the workers' own rounds of the exchange; and what must hold of every run. Models, requests and meshes
// are drawn; STEMMA_SEED draws others.
#include "server/simulation/simulation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/mesh.h"
#include "common/cost/plan_seconds.h"
#include "common/cost/rank_shape.h"
#include "common/cost/state_bytes.h"
#include "server/planner/memory_division.h"
#include "server/simulation/state_exchange.h"
#include "server/simulation/step_programs.h"
#include "tests/server/planner/cluster_shapes.h"
#include "tests/server/simulation/drawn_simulations.h"
#include "tests/testing/namespaces.h"

namespace stemma::testing {
namespace {

TEST_P(DrawnSimulationTest, TheSecondsOfARankAreAllOfOneKind) {
  SetLinks(1e-9, 1e-4, rates_);
  const SimulationAnswer answer = Answer();
  ExpectParts(answer);
  const PlanResult plan = Plan();
  EXPECT_EQ(answer.steps, plan.report.num_steps());
  EXPECT_EQ(answer.tokens, static_cast<double>(plan.report.tokens_logical()));
  EXPECT_EQ(answer.flops, plan.report.flops());
  EXPECT_GE(answer.step_bytes, plan.report.peak_bytes());
}

// Copies that share nothing: the slowest takes what the planner says of it, groups that copies share included. Where
// messages cost nothing, copies of one stage and of several run as planned.
TEST_P(DrawnSimulationTest, WithoutWiresCopiesTakeWhatTheyArePlannedToTake) {
  SetLinks(0, 0, rates_);
  SetMesh({.dp = DpSize(question_.mesh), .pp = PpSize(question_.mesh), .tp = TpSize(question_.mesh)});
  PlannerModel model;
  const PlanResult plan = Plan(&model);
  for (const PlannedStep& planned : StepsOf(model, plan)) {
    const v1::StepReport& report = planned.report;
    const double planned_s = PhasesSeconds(report);
    EXPECT_EQ(report.pipeline_s() > 0, PpSize(question_.mesh) > 1);
    EXPECT_NEAR(EndSeconds(model, planned), planned_s, kSame * planned_s) << Where();
  }
}

// The same with a wire between the copies alone: what they send each other is in the planner's timeline.
TEST_P(DrawnSimulationTest, AGroupThatCopiesShareTakesWhatItsTimelineSays) {
  ShareGroups({.dp = 3});
  PlannerModel model;
  const PlanResult plan = Plan(&model);
  for (const PlannedStep& planned : StepsOf(model, plan)) {
    const auto ranks = RunPrograms(Programs(model, planned).programs);
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      const v1::RankReport& report = planned.report.ranks(static_cast<int>(rank));
      const double exchange_s = ranks[rank].wire_s[kDataAt] + ranks[rank].wait_s[kDataAt];
      EXPECT_NEAR(exchange_s, report.exchange_s(), kSame * (1 + report.exchange_s())) << Where() << "rank " << rank;
      EXPECT_NEAR(ranks[rank].end_s, TotalSeconds(report.seconds()) + report.exchange_s(),
                  kSame * (1 + ranks[rank].end_s));
    }
  }
}

TEST_P(DrawnSimulationTest, CopiesOfSeveralStagesShareGroups) {
  ShareGroups({.dp = 3, .pp = static_cast<uint32_t>(draw_.Between(2, 3))});
  PlannerModel model;
  const PlanResult plan = Plan(&model);
  for (const PlannedStep& planned : StepsOf(model, plan)) {
    EXPECT_NEAR(EndSeconds(model, planned), planned.report.pipeline_s(), kSame * planned.report.pipeline_s())
        << Where();
  }
}

TEST_P(DrawnSimulationTest, SlowerWiresNeverMakeARunShorter) {
  double before_s = 0;
  SetLinks(0, 0, rates_);
  PlannerModel model;
  const PlanResult plan = Plan(&model);
  for (const double slower : {0.0, 1.0, 10.0}) {
    SetLinks(slower * 1e-10, slower * 1e-5, model.rates);
    const double end_s = EndSeconds(model, StepsOf(model, plan).back());
    EXPECT_GE(end_s, before_s) << Where() << slower;
    before_s = end_s;
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, DrawnSimulationTest, ::testing::Range(0u, 24u));

SimulationQuestion BenchQuestion(const MeshSizes& sizes, const Rates& rates) {
  SimulationQuestion question = {
      .mesh_question = {.config = BenchModel(), .run = {}, .requests = {}, .memory = {}, .rates = {}},
      .mesh = MakeMesh(sizes),
      .cores = {}};
  MeshQuestion& asked = question.mesh_question;
  asked.config.rms_norm_eps = 1e-6;
  asked.run.set_dtype("fp32");
  asked.run.set_head_chunk_tokens(512);
  asked.ranks = NumRanks(question.mesh);
  asked.memory = {.device_free_bytes = int64_t{4} << 30, .device_bytes = int64_t{4} << 30};
  asked.rates = [rates](const v1::Mesh&, v1::OptimizerResidency) { return rates; };
  PlannerRequest request;
  for (int g = 0; g < 4; ++g) {
    request.groups.push_back({.uid = absl::StrCat("g", g), .prompt_tokens = 513, .rollouts = {}});
    for (int i = 0; i < 8; ++i) request.groups.back().rollouts.push_back({128});
  }
  asked.requests = {{"the request", std::move(request)}};
  return question;
}

StepSeconds SecondsOfRun(const SimulationQuestion& question) {
  const auto answer = Simulate(question);
  EXPECT_TRUE(answer.ok()) << answer.status();
  return answer->seconds;
}

// The bench model has 1.7 buckets. Two ranks send half of all gradients and half of all weights.
TEST(SimulationTest, WhatRanksShareOnceAStepIsSentOnceAndHiddenAsFarAsTheBackwardLasts) {
  Rates rates = BenchRates();
  SetLinks(1e-9, 0, rates);
  const auto answer = Simulate(BenchQuestion({.dp = 2}, rates));
  ASSERT_TRUE(answer.ok()) << answer.status();
  const auto parameters = static_cast<double>(BenchModel().num_parameters());
  EXPECT_NEAR(answer->sent_bytes[kDataAt], parameters / 2 * (4 + 4), 4 * 256.0) << "parts are rounded";
  const StepSeconds& s = answer->seconds;
  EXPECT_NEAR(s.gathering_s, parameters / 2 * 4 * 1e-9, 1e-6);
  EXPECT_NEAR(s.hidden_s[kDataAt] + s.reduction_s, parameters / 2 * 4 * 1e-9, 1e-6);
  EXPECT_GT(s.hidden_s[kDataAt], 0);
  EXPECT_GT(s.reduction_s, 0) << "the embedding's gradient is final at the end";
  EXPECT_NEAR(s.apply_s, parameters / 2 * rates[kParameter], 1e-6);
  EXPECT_EQ(SecondsOfRun(BenchQuestion({.tp = 2}, rates)).gathering_s, 0) << "control: nobody holds the same";
}

// Two ranks gather the weights of two sweeps forward and two backward at most, and hand out half of the gradients of
// two backwards; of stepped weights each keeps its part.
TEST(SimulationTest, ShardedParametersAreSentWhileThePhasesRun) {
  Rates rates = BenchRates();
  SetLinks(1e-9, 0, rates);
  SimulationQuestion question = BenchQuestion({.dp = 2}, rates);
  const auto whole = Simulate(question);
  question.mesh_question.run.set_shard_parameters(v1::SHARD_PARAMETERS_ON);
  const auto sharded = Simulate(question);
  ASSERT_TRUE(whole.ok() && sharded.ok()) << whole.status() << sharded.status();
  const StepSeconds& s = sharded->seconds;
  EXPECT_EQ(s.reduction_s, 0);
  EXPECT_EQ(s.gathering_s, 0);
  EXPECT_EQ(s.agreement_s, whole->seconds.agreement_s);
  EXPECT_NEAR(s.apply_s, whole->seconds.apply_s, 1e-5);
  EXPECT_LT(sharded->state_bytes, whole->state_bytes);
  EXPECT_NEAR(s.wire_s[kDataAt] + s.hidden_s[kDataAt], sharded->sent_bytes[kDataAt] * 1e-9, kSame);
  EXPECT_GT(s.hidden_s[kDataAt], s.wire_s[kDataAt]) << "all layers but the first";
  EXPECT_GT(sharded->sent_bytes[kDataAt], whole->sent_bytes[kDataAt]) << "control: forward and backward gather both";
  rates[kDataByte] = 0;
  question.mesh_question.rates = [rates](const v1::Mesh&, v1::OptimizerResidency) { return rates; };
  EXPECT_LT(Simulate(question)->seconds.pass_s, s.pass_s);
}

// A copy without anything to compute gathers with the other one, and waits for it and not for its own wires after it.
TEST(SimulationTest, ACopyThatOnlyGathersHoldsNobodyBeyondTheOnesThatCompute) {
  Rates rates = BenchRates();
  SetLinks(1e-9, 0, rates);
  SimulationQuestion question = BenchQuestion({.dp = 2}, rates);
  question.mesh_question.run.set_shard_parameters(v1::SHARD_PARAMETERS_ON);
  question.mesh_question.run.set_split_groups(v1::SPLIT_OFF);
  question.mesh_question.requests.front().request.groups.resize(1);
  const auto wired = Simulate(question);
  SetLinks(0, 0, rates);
  question.mesh_question.rates = [rates](const v1::Mesh&, v1::OptimizerResidency) { return rates; };
  const auto silent = Simulate(question);
  ASSERT_TRUE(wired.ok() && silent.ok()) << wired.status() << silent.status();
  const double wire_s = wired->sent_bytes[kDataAt] * 1e-9;
  // The copy without compute is held by all of its wires; the rest is what the other one does not hide.
  const double exposed_s = 2 * wired->seconds.wire_s[kDataAt] - wire_s;
  EXPECT_GT(exposed_s, 0);
  EXPECT_LT(exposed_s, wire_s / 4);
  EXPECT_NEAR(wired->seconds.pass_s, silent->seconds.pass_s + exposed_s, kSame);
  EXPECT_NEAR(silent->seconds.wait_s[kDataAt], silent->seconds.pass_s / 2, kSame) << "the mean of all and nothing";
  EXPECT_NEAR(silent->seconds.compute_s, silent->seconds.pass_s / 2, kSame);
}

void ExpectPhasesOfThePlan(const SimulationQuestion& question) {
  const auto model = ModelOnMesh(question.mesh_question, question.mesh);
  ASSERT_TRUE(model.ok()) << model.status();
  const auto plan = MakePlan(*model, question.mesh_question.requests.front().request);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const v1::PhaseSeconds& planned = plan->report.seconds();
  const StepSeconds seconds = SecondsOfRun(question);
  EXPECT_NEAR(seconds.phase_s[0], planned.prefix_forward(), kSame);
  EXPECT_NEAR(seconds.phase_s[1], planned.suffix(), kSame);
  EXPECT_NEAR(seconds.phase_s[2], planned.prefix_backward(), kSame);
  EXPECT_GT(seconds.phase_s[2], seconds.phase_s[0]);
  EXPECT_NEAR(seconds.apply_s, planned.apply(), kSame);
}

TEST(SimulationTest, PhasesAreThoseOfThePlan) {
  Rates rates = BenchRates();
  SetLinks(0, 0, rates);
  SimulationQuestion question = BenchQuestion({}, rates);
  ExpectPhasesOfThePlan(question);
  question.mesh_question.run.set_head_chunk_tokens(50);
  const double once_s = SecondsOfRun(question).phase_s[1];
  question.mesh_question.requests.front().request.whole_rollouts = true;
  ExpectPhasesOfThePlan(question);
  EXPECT_GT(SecondsOfRun(question).phase_s[1], once_s) << "two of three chunks of the head run forward twice";
}

TEST(SimulationTest, CoresThatAreSharedMakeRanksOneWorkerAgain) {
  Rates rates = BenchRates();
  SetLinks(0, 0, rates);
  const double one_s = SecondsOfRun(BenchQuestion({}, rates)).total_s;
  SimulationQuestion two = BenchQuestion({.dp = 2}, rates);
  EXPECT_NEAR(SecondsOfRun(two).total_s, one_s / 2, 0.02 * one_s) << "control: each has cores of its own";
  two.cores = {.cores = 2, .threads_per_rank = 2};
  EXPECT_NEAR(SecondsOfRun(two).total_s, one_s, 0.02 * one_s);
}

// The planner counts a message as its sender's work; in simulated time it holds nobody but the next stage's first.
TEST(SimulationTest, MessagesBetweenStagesRunBesideCompute) {
  Rates rates = BenchRates();
  SetLinks(0, 0, rates);
  const StepSeconds silent = SecondsOfRun(BenchQuestion({.pp = 2}, rates));
  EXPECT_GT(silent.wait_s[kStageAt], 0) << "the bubble";
  rates[kStageByte] = 1e-9;
  const StepSeconds sent = SecondsOfRun(BenchQuestion({.pp = 2}, rates));
  EXPECT_GT(sent.hidden_s[kStageAt], 0);
  EXPECT_GT(sent.total_s, silent.total_s);
  EXPECT_EQ(silent.wire_s[kStageAt], 0);
  EXPECT_GT(sent.wire_s[kStageAt], 0) << "the first wave comes behind its message";
  EXPECT_LT(sent.wire_s[kStageAt], sent.hidden_s[kStageAt]) << "later ones come while their stage is busy";
}

// What is computed is the same on every mesh.
TEST(SimulationTest, FlopsAreThoseOfTheWholeModel) {
  const auto flops = [](const MeshSizes& sizes) { return Simulate(BenchQuestion(sizes, BenchRates()))->flops; };
  for (const MeshSizes& sizes :
       {MeshSizes{.dp = 2}, MeshSizes{.pp = 2}, MeshSizes{.cp = 2}, MeshSizes{.tp = 2}, MeshSizes{.tp = 8}}) {
    EXPECT_EQ(flops(sizes), flops({})) << MeshText(MakeMesh(sizes));
  }
}

TEST(SimulationTest, AMeshThatCannotBeHasTheReasonOfTheMeshRules) {
  const auto answer = Simulate(BenchQuestion({.tp = 3}, BenchRates()));
  ASSERT_FALSE(answer.ok());
  EXPECT_THAT(answer.status().message(), ::testing::HasSubstr("3 ranks cannot share the model's 8 attention heads"));
}

TEST(SimulationTest, ALogProbPassRunsBeforeTheSteps) {
  const Rates rates = BenchRates();
  SimulationQuestion question = BenchQuestion({.dp = 2}, rates);
  const double without_s = SecondsOfRun(question).total_s;
  question.mesh_question.requests.front().request.log_prob_passes = 2;
  const double twice_s = SecondsOfRun(question).total_s - without_s;
  question.mesh_question.requests.front().request.log_prob_passes = 1;
  EXPECT_NEAR(SecondsOfRun(question).total_s - without_s, twice_s / 2, kSame);
  EXPECT_GT(twice_s, 0.3 * without_s) << "two forwards of a step that has one, and a backward";
}

}  // namespace
}  // namespace stemma::testing
