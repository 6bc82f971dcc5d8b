// Steps with sharded parameters in simulated time: against the planner's seconds where wires take no time, against the
// bytes that it counts, and against the same steps without gathering. Requests and meshes are drawn; STEMMA_SEED draws
// others.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "common/base/mesh.h"
#include "common/cost/plan_seconds.h"
#include "common/cost/state_bytes.h"
#include "server/simulation/simulation.h"
#include "tests/server/simulation/drawn_simulations.h"
#include "tests/testing/clear_sweeps.h"
#include "tests/testing/namespaces.h"

namespace stemma::testing {
namespace {

class DrawnShardedSimulationTest : public DrawnSimulationTest {
 protected:
  DrawnShardedSimulationTest() {
    v1::RunConfig& run = question_.mesh_question.run;
    run.set_shard_parameters(v1::SHARD_PARAMETERS_ON);
    if (draw_.Chance(30)) run.set_prefix_block_rows(static_cast<uint32_t>(draw_.Between(100, 700)));
    if (draw_.Chance(30)) run.set_prefix_policy(draw_.Of<v1::TapePolicy>({v1::S0, v1::S5}));
    run.set_reduce_gradients(draw_.Of<v1::ReduceGradients>({v1::REDUCE_GRADIENTS_SWEEP, v1::REDUCE_GRADIENTS_STEP}));
    const v1::Mesh drawn = question_.mesh;
    if (DataRanks(drawn) == 1) SetMesh({.dp = 2, .pp = PpSize(drawn), .tp = TpSize(drawn)});
  }

  void SetOneCopyPerGroup() { question_.mesh_question.run.set_split_groups(v1::SPLIT_OFF); }

  // Returns what a step is planned to take without APPLY.
  static double PlannedSeconds(const v1::StepReport& report) { return PhasesSeconds(report) + report.parameters_s(); }

  // Without wires a step takes what it is planned to take: in each operation all copies wait for the one that has most
  // to compute in it. Where the plan says that sharing the sweeps adds nothing, it may have said a little more.
  void ExpectPlannedSeconds() {
    PlannerModel model;
    const PlanResult plan = ShardedPlan(model);
    for (const PlannedStep& planned : StepsOf(model, plan)) {
      const double planned_s = PlannedSeconds(planned.report), end_s = EndSeconds(model, planned);
      if (planned.report.parameters_s() > 0) {
        EXPECT_NEAR(end_s, planned_s, kSame * planned_s) << Where();
      } else {
        EXPECT_LE(end_s, planned_s * (1 + kSame)) << Where();
      }
    }
  }

  // Returns the plan, which is sharded, and what it was made by.
  PlanResult ShardedPlan(PlannerModel& model) const {
    PlanResult plan = Plan(&model);
    EXPECT_TRUE(plan.report.shards_parameters()) << Where();
    return plan;
  }
};

// Every operation is a meeting of all copies there, so no order of theirs may wait for itself.
TEST_P(DrawnShardedSimulationTest, EveryStepEndsAndItsSecondsAreAllOfOneKind) {
  SetLinks(1e-9, 1e-5, rates_);
  if (draw_.Chance(50)) question_.mesh_question.run.set_split_groups(v1::SPLIT_ON);
  const SimulationAnswer answer = Answer();
  ExpectParts(answer);
  EXPECT_TRUE(ShardsParameters(answer.run)) << Where();
  EXPECT_EQ(answer.steps, Plan().report.num_steps());
  EXPECT_EQ(answer.seconds.gathering_s, 0) << "stepped weights stay where they are";
  EXPECT_EQ(answer.sent_bytes[kDataAt] > 0, answer.seconds.compute_s > 0) << Where();
}

TEST_P(DrawnShardedSimulationTest, WithoutWiresAPipelineTakesWhatItIsPlannedToTake) {
  SetLinks(0, 0, rates_);
  const v1::Mesh mesh = question_.mesh;
  SetMesh({.dp = DpSize(mesh), .pp = std::max(PpSize(mesh), 2u), .cp = CpSize(mesh), .tp = TpSize(mesh)});
  ExpectPlannedSeconds();
}

TEST_P(DrawnShardedSimulationTest, WithoutWiresOneStageTakesWhatItIsPlannedToTake) {
  SetLinks(0, 0, rates_);
  SetOneCopyPerGroup();
  SetMesh({.dp = std::max(DpSize(question_.mesh), 2u), .cp = CpSize(question_.mesh), .tp = TpSize(question_.mesh)});
  ExpectPlannedSeconds();
}

// With several waves they meet in each of them, so they take what they would take alone, or longer.
TEST_P(DrawnShardedSimulationTest, CopiesThatMeetAreNoFasterThanCopiesThatDoNot) {
  SetLinks(0, 0, rates_);
  SetMesh({.dp = std::max(DpSize(question_.mesh), 2u), .cp = CpSize(question_.mesh), .tp = TpSize(question_.mesh)});
  PlannerModel model;
  const PlanResult plan = ShardedPlan(model);
  for (const PlannedStep& planned : StepsOf(model, plan)) {
    v1::StepPlan whole = planned.step;
    ClearSweeps(whole);
    const double alone_s = EndSeconds(model, {planned.options, whole, planned.report});
    EXPECT_GE(EndSeconds(model, planned), alone_s * (1 - kSame)) << Where();
  }
}

// What gathering takes is never less than nothing, and never more than if nothing hid it.
TEST_P(DrawnShardedSimulationTest, GatheringOnlyTakesTime) {
  SetLinks(0, 0, rates_);
  SetOneCopyPerGroup();
  PlannerModel model;
  const PlanResult plan = ShardedPlan(model);
  double before_s = EndSeconds(model, StepsOf(model, plan).back());
  const double computed_s = before_s;
  for (const double slower : {0.1, 1.0, 10.0}) {
    model.rates[kDataByte] = slower * 1e-9;
    model.rates[kDataCollective] = slower * 1e-5;
    const PlannedStep planned = StepsOf(model, plan).back();
    const auto programs = Programs(model, planned);
    const double end_s = EndSeconds(RunPrograms(programs.programs));
    EXPECT_GE(end_s, before_s) << Where() << slower;
    double wires_s = 0;  // of all stages, one behind the other
    for (size_t stage = 0; stage < PpSize(question_.mesh); ++stage) {
      const size_t program = stage * CpSize(question_.mesh);
      wires_s += programs.hidden_s[program][kDataAt];
      for (const SimulatedOperation& operation : programs.programs[program]) wires_s += operation.wire_s[kDataAt];
    }
    EXPECT_LE(end_s, computed_s + wires_s * (1 + kSame)) << Where() << slower;
    before_s = end_s;
  }
  EXPECT_EQ(before_s > computed_s, computed_s > 0) << Where();
}

TEST_P(DrawnShardedSimulationTest, AllRanksSendTheBytesOfThePlan) {
  SetOneCopyPerGroup();
  PlannerModel model;
  const PlanResult plan = ShardedPlan(model);
  for (const PlannedStep& planned : StepsOf(model, plan)) {
    double sent = 0;
    for (const auto& program : Programs(model, planned).sent_bytes) sent += program[kDataAt];
    EXPECT_EQ(sent * TpSize(question_.mesh), static_cast<double>(planned.report.parameters_bytes())) << Where();
    EXPECT_EQ(sent > 0, !planned.step.clusters().empty()) << Where();
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, DrawnShardedSimulationTest, ::testing::Range(0u, 24u));

}  // namespace
}  // namespace stemma::testing
