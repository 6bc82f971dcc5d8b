// Plans of sharded parameters, as the server makes them, and the programs that ranks make of them: all ranks that hold
// the same part of the model make the same visits, and nobody waits for ever. Models, meshes, requests and budgets are
// drawn; STEMMA_SEED draws others.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/mesh.h"
#include "common/cost/cluster_facts.h"
#include "common/cost/plan_seconds.h"
#include "common/cost/rank_shape.h"
#include "common/cost/state_bytes.h"
#include "server/planner/memory_division.h"
#include "server/planner/parameter_sweeps.h"
#include "server/planner/planner.h"
#include "server/planner/sharded_step.h"
#include "server/planner/stage_plan.h"
#include "tests/testing/clear_sweeps.h"
#include "tests/testing/draw.h"
#include "tests/testing/synthetic.h"
#include "tests/worker/schedule/copy_peak.h"
#include "tests/worker/schedule/programs.h"
#include "worker/schedule/parameter_sweeps.h"
#include "worker/schedule/stage_orders.h"

namespace stemma::worker {
namespace {

using server::MakePlan, server::PlannerGroup, server::PlanResult;
using testing::Draw;
using ::testing::HasSubstr;

// From this seed on copies are uneven.
constexpr uint32_t kUnevenCopies = 1000;

class ShardedProgramTest : public ::testing::TestWithParam<uint32_t> {
 protected:
  ShardedProgramTest() : draw_(testing::FirstSeed() + GetParam()) {
    const auto pp = static_cast<uint32_t>(draw_.Of<int>({1, 1, 2, 3})), cp = static_cast<uint32_t>(draw_.Between(1, 2));
    model_.config = testing::SyntheticModel({.hidden = 64 * draw_.Between(1, 4),
                                             .layers = pp + draw_.Between(0, 4),
                                             .heads = 8,
                                             .kv_heads = 4,
                                             .head_size = 16,
                                             .ffn = 64 * draw_.Between(2, 6)});
    model_.config.tie_word_embeddings = draw_.Chance(50);
    model_.run.set_dtype(draw_.Of<std::string>({"fp32", "bf16", "fp64"}));
    model_.run.set_head_chunk_tokens(512);
    *model_.run.mutable_mesh() = MakeMesh({.dp = static_cast<uint32_t>(draw_.Between(2, 4)), .pp = pp, .cp = cp});
    model_.run.set_shard_parameters(v1::SHARD_PARAMETERS_ON);
    model_.run.set_split_groups(draw_.Of<v1::Split>({v1::SPLIT_ON, v1::SPLIT_AUTO, v1::SPLIT_OFF}));
    model_.run.set_prefix_kv(draw_.Of<v1::PrefixKv>({v1::PREFIX_KV_AUTO, v1::PREFIX_KV_HOLD, v1::PREFIX_KV_REGATHER}));
    model_.run.set_wave_suffixes(static_cast<uint32_t>(draw_.Between(0, 3)));
    if (draw_.Chance(30)) model_.run.set_prefix_policy(v1::S5);
    if (draw_.Chance(40)) model_.run.set_prefix_block_rows(static_cast<uint32_t>(draw_.Between(50, 400)));
    const int64_t state = StateBytesOf(model_.config, model_.run).device(v1::DEVICE);
    model_.run.set_memory_budget_bytes(static_cast<uint64_t>(state + draw_.Between(100, 2000) * (1 << 20)));
    for (int64_t g = draw_.Between(1, 12); g > 0; --g) {
      PlannerGroup& group = request_.groups.emplace_back();
      group.uid = absl::StrCat("g", request_.groups.size());
      group.prompt_tokens = draw_.Between(1, 900);
      for (int64_t i = draw_.Between(1, 9); i > 0; --i) {
        group.rollouts.push_back({draw_.Between(1, 300), draw_.Chance(90)});
      }
    }
    request_.log_prob_passes = static_cast<int>(draw_.Between(0, 1));
    request_.payload_digest = "d";
    model_.run.set_reduce_gradients(draw_.Of<v1::ReduceGradients>(
        {v1::REDUCE_GRADIENTS_AUTO, v1::REDUCE_GRADIENTS_SWEEP, v1::REDUCE_GRADIENTS_STEP}));
    if (GetParam() >= kUnevenCopies) DrawUnevenCopies();
  }

  // Draws two copies of several stages, and a few long prompts, each a cluster: one copy has few waves of many rows
  // where the other has many of few, and still holds what it sent before.
  void DrawUnevenCopies() {
    *model_.run.mutable_mesh() = MakeMesh({.dp = 2, .pp = static_cast<uint32_t>(draw_.Between(2, 4))});
    model_.config.num_layers = 4;
    model_.config.vocab_size = 64;
    model_.run.set_reduce_gradients(v1::REDUCE_GRADIENTS_SWEEP);
    model_.run.set_wave_suffixes(1);
    model_.run.set_split_groups(v1::SPLIT_OFF);
    model_.run.clear_prefix_block_rows();
    model_.run.set_memory_budget_bytes(uint64_t{64} << 30);
    request_.groups.clear();
    for (int64_t g = draw_.Between(3, 6); g > 0; --g) {
      PlannerGroup& group = request_.groups.emplace_back();
      group.uid = absl::StrCat("g", g);
      group.prompt_tokens = draw_.Between(2050, 2200);
      const int64_t rollouts = draw_.Between(1, 9), tokens = draw_.LogBetween(20, 9000);
      for (int64_t i = 0; i < rollouts; ++i) group.rollouts.push_back({tokens, true});
    }
  }

  PlanResult Plan() {
    auto plan = MakePlan(model_, request_);
    EXPECT_TRUE(plan.ok()) << plan.status() << " seed " << seed();
    return plan.ok() ? *std::move(plan) : PlanResult{};
  }
  uint32_t seed() const { return testing::FirstSeed() + GetParam(); }
  const v1::Mesh& mesh() const { return model_.run.mesh(); }

  RankSizes SizesOf(uint32_t copy, uint32_t stage, uint32_t cp_rank) const {
    RankSizes sizes = {.copy = static_cast<int>(copy),
                       .num_copies = static_cast<int>(DpSize(mesh())),
                       .cp_rank = static_cast<int>(cp_rank),
                       .cp_ranks = static_cast<int>(CpSize(mesh())),
                       .stage = static_cast<int>(stage),
                       .stages = static_cast<int>(PpSize(mesh()))};
    for (const PlannerGroup& group : request_.groups) sizes.prefix_rows.push_back(group.prompt_tokens - 1);
    return sizes;
  }

  // A copy's part of a step, as its ranks are sent it.
  static v1::StepPlan PartOf(const v1::StepPlan& step, uint32_t copy) {
    v1::StepPlan part;
    part.set_reduce_gradients_once(step.reduce_gradients_once());
    for (const v1::Cluster& cluster : step.clusters()) {
      if (cluster.dp_rank() == copy) *part.add_clusters() = cluster;
    }
    for (const v1::CopyStages& stages : step.copies()) {
      if (stages.dp_rank() == copy) *part.add_copies() = stages;
    }
    return part;
  }

  // Calls `each` with every rank's place and its part of the step, in the order in which exchanges number ranks.
  template <typename Each>
  void ForRanks(const v1::StepPlan& step, const Each& each) const {
    for (uint32_t stage = 0; stage < PpSize(mesh()); ++stage) {
      for (uint32_t copy = 0; copy < DpSize(mesh()); ++copy) {
        for (uint32_t cp_rank = 0; cp_rank < CpSize(mesh()); ++cp_rank) {
          each(stage, SizesOf(copy, stage, cp_rank), PartOf(step, copy));
        }
      }
    }
  }

  ParameterUnits UnitsOf(uint32_t stage) const {
    return ParameterUnitsOf(StageShards(model_.config, mesh())[stage], DataRanks(mesh()));
  }

  void ExpectSameVisits(const v1::StepPlan& step, bool forward_only, uint64_t predicted_bytes) {
    std::vector<Program> programs;
    std::map<uint32_t, std::set<std::string>> of_stages;  // the visits of each rank, as text
    UnitTraffic traffic;
    ForRanks(step, [&](uint32_t stage, const RankSizes& sizes, const v1::StepPlan& part) {
      EXPECT_EQ(CheckParameterSweeps(part, sizes, /*sharded=*/true), absl::OkStatus());
      EXPECT_EQ(CheckStageOrders(part, forward_only, sizes), absl::OkStatus());
      programs.push_back(ExpandStep(part, forward_only, sizes));
      const ParameterUnits units = UnitsOf(stage);
      const auto visits = ProgramVisits(programs.back(), part, sizes, units, forward_only);
      std::string text;
      for (const std::vector<UnitVisit>& of_operation : visits) {
        for (const UnitVisit& visit : of_operation) {
          absl::StrAppend(&text, visit.unit, visit.weights ? "w" : "", visit.gradients ? "g" : "",
                          visit.reduces ? "r" : "", " ");
        }
      }
      of_stages[stage].insert(text);
      for (const UnitTraffic& of_operation : TrafficOf(units, visits)) traffic += of_operation;
    });
    for (const auto& [stage, texts] : of_stages) EXPECT_EQ(texts.size(), 1U) << "stage " << stage << " seed " << seed();
    const auto peaks = testing::CheckPrograms(programs, forward_only);
    EXPECT_TRUE(peaks.ok()) << peaks.status() << " seed " << seed();
    const RunDtype dtype = RunDtypeOf(model_.run.dtype());
    EXPECT_EQ(predicted_bytes, static_cast<uint64_t>(traffic.weight_elements * RunBytes(dtype) +
                                                     traffic.gradient_elements * AccumulateBytes(dtype)));
  }

  server::MemoryOptions Options(bool reduces_once) const {
    server::MemoryOptions options = MemoryOptionsOf(model_.config, model_.run, model_.rates, /*forward_only=*/false);
    options.wave_rows = options.cluster_prefix_rows = server::RowsWorthGathering(model_, reduces_once);
    return options;
  }

  Draw draw_;
  server::PlannerModel model_;
  server::PlannerRequest request_;
};

TEST_P(ShardedProgramTest, RanksOfOnePartMakeTheSameVisits) {
  const PlanResult result = Plan();
  const int passes = request_.log_prob_passes;
  if (passes > 0) ExpectSameVisits(result.plan.log_prob_pass(), true, result.report.steps(0).parameters_bytes());
  for (int k = 0; k < result.plan.steps_size(); ++k) {
    ExpectSameVisits(result.plan.steps(k), false, result.report.steps(k + passes).parameters_bytes());
  }
}

// Sharing takes nothing away and changes no order: without sweeps and empty clusters it is the plan that was made.
TEST_P(ShardedProgramTest, SharedSweepsAreThePlannersClusters) {
  const PlanResult result = Plan();
  std::vector<int64_t> prefix_rows;
  for (const PlannerGroup& group : request_.groups) prefix_rows.push_back(group.prompt_tokens - 1);
  for (const v1::StepPlan& step : result.plan.steps()) {
    v1::StepPlan cleared = step, again;
    testing::ClearSweeps(cleared);
    for (const v1::Cluster& cluster : cleared.clusters()) {
      EXPECT_FALSE(cluster.has_sweeps());
      EXPECT_GT(cluster.waves_size(), 0);
    }
    again = cleared;
    server::ShareSweeps(prefix_rows, {DpSize(mesh()), CpSize(mesh())}, again);
    EXPECT_EQ(again.SerializeAsString(), step.SerializeAsString()) << "seed " << seed();
    std::map<uint32_t, int64_t> rollouts;
    for (const v1::Cluster& cluster : step.clusters()) {
      for (const v1::Wave& wave : cluster.waves()) {
        for (const v1::WaveMember& member : wave.members()) ++rollouts[member.group()];
      }
    }
    for (const uint32_t g : step.groups()) {
      int64_t runs = 0;
      for (const auto& rollout : request_.groups[g].rollouts) runs += rollout.run;
      EXPECT_EQ(rollouts[g], runs) << "group " << g << " seed " << seed();
    }
  }
}

// A place has one split group at most, and all copies that share the group have it there: a copy that waits for
// another's K/V in one place would else be waited for in a gathering of another.
TEST_P(ShardedProgramTest, ASplitGroupHasOnePlaceOfItsOwn) {
  const PlanResult result = Plan();
  for (const v1::StepPlan& step : result.plan.steps()) {
    std::map<uint32_t, size_t> next;                 // place of each copy
    std::map<size_t, uint32_t> group_of;             // of a place
    std::map<uint32_t, std::set<size_t>> places_of;  // of a split group
    for (const v1::Cluster& cluster : step.clusters()) {
      const size_t place = next[cluster.dp_rank()]++;
      if (!IsSplit(cluster)) continue;
      const uint32_t group = cluster.prefix_groups(0);
      places_of[group].insert(place);
      EXPECT_EQ(group_of.try_emplace(place, group).first->second, group) << "place " << place << ", seed " << seed();
    }
    for (const auto& [group, places] : places_of)
      EXPECT_EQ(places.size(), 1U) << "group " << group << ", seed " << seed();
  }
}

// What it takes is never less than what the copies compute, and nothing is exchanged where parameters are whole.
TEST_P(ShardedProgramTest, PredictedSecondsHaveTheGathering) {
  const PlanResult sharded = Plan();
  EXPECT_TRUE(sharded.report.shards_parameters());
  EXPECT_GE(sharded.report.parameters_s(), 0);
  double phases_s = 0;
  const int passes = request_.log_prob_passes;
  for (int k = 0; k < sharded.report.steps_size(); ++k) {
    const double times = k == 0 && passes > 0 ? passes : sharded.repeats;
    phases_s += times * (PhasesSeconds(sharded.report.steps(k)) + sharded.report.steps(k).seconds().apply());
  }
  EXPECT_NEAR(PlanSeconds(sharded.report), sharded.report.parameters_s() + phases_s, 1e-12);
  // The slower the link, the more is packed into a cluster, up to a bound: both of these are beyond it.
  model_.run.set_split_groups(v1::SPLIT_OFF);  // nothing else is exchanged between copies while phases run
  model_.rates[server::kDataByte] *= 1e4;
  const PlanResult slow = Plan();
  model_.rates[server::kDataByte] *= 1e2;
  const PlanResult slower = Plan();
  if (sharded.report.parameters_bytes() > 0) {
    EXPECT_GT(slower.report.parameters_s(), slow.report.parameters_s()) << "seed " << seed();
  }
  model_.run.set_shard_parameters(v1::SHARD_PARAMETERS_OFF);
  model_.run.set_memory_budget_bytes(uint64_t{1} << 40);
  const PlanResult whole = Plan();
  EXPECT_FALSE(whole.report.shards_parameters());
  EXPECT_EQ(whole.report.parameters_bytes(), 0U);
  for (const v1::StepPlan& step : whole.plan.steps()) {
    for (const v1::Cluster& cluster : step.clusters()) EXPECT_FALSE(cluster.has_sweeps());
  }
}

// Gradients are reduced once where the run says so, or where that is faster and its bytes fit; of ways that are as fast
// the one is taken that sends less, and of equal ones that without the sums.
TEST_P(ShardedProgramTest, GradientsAreReducedOnceWhereThatFits) {
  const auto plan = [&](v1::ReduceGradients reduction) {
    model_.run.set_reduce_gradients(reduction);
    return Plan();
  };
  const PlanResult swept = plan(v1::REDUCE_GRADIENTS_SWEEP), once = plan(v1::REDUCE_GRADIENTS_STEP),
                   chosen = plan(v1::REDUCE_GRADIENTS_AUTO);
  const auto sums = static_cast<uint64_t>(StateBytesOf(model_.config, model_.run).gradient_sums);
  const auto expect = [&](const PlanResult& result, bool reduces_once) {
    for (int k = 0; k < result.plan.steps_size(); ++k) {
      const v1::StepReport& report = result.report.steps(k + request_.log_prob_passes);
      const bool runs = !result.plan.steps(k).clusters().empty();
      EXPECT_EQ(result.plan.steps(k).reduce_gradients_once(), reduces_once && runs) << "seed " << seed();
      EXPECT_EQ(report.gradient_sums_bytes(), reduces_once && runs ? sums : 0) << "seed " << seed();
      EXPECT_GE(report.peak_bytes(), report.gradient_sums_bytes());
      EXPECT_LE(report.peak_bytes() + static_cast<uint64_t>(StateBytesOf(model_.config, model_.run).total()),
                model_.run.memory_budget_bytes());
    }
    EXPECT_FALSE(result.plan.log_prob_pass().reduce_gradients_once()) << "no gradients are made in it";
  };
  expect(swept, false);
  expect(once, true);
  const auto cost = [](const PlanResult& result) {
    return std::pair(PlanSeconds(result.report), result.report.parameters_bytes());
  };
  expect(chosen, cost(once) < cost(swept));
  EXPECT_EQ(PlanSeconds(chosen.report), std::min(PlanSeconds(once.report), PlanSeconds(swept.report)));
  const bool same_waves = once.report.num_waves() == swept.report.num_waves();
  if (same_waves) {
    EXPECT_LE(once.report.parameters_bytes(), swept.report.parameters_bytes()) << "seed " << seed();
  }
}

// Without room for gradients of the whole model they are reduced after each sweep; a run that asks for them all the
// same is told what they take.
TEST_P(ShardedProgramTest, GradientsThatDoNotFitAreReducedAfterEachSweep) {
  model_.run.set_reduce_gradients(v1::REDUCE_GRADIENTS_SWEEP);
  uint64_t left = Plan().report.peak_bytes();
  // Stages leave room for messages of any rows that the request may have.
  if (PpSize(mesh()) > 1 && left > 0)
    left += static_cast<uint64_t>(server::RowsInFlightBytes(Options(/*reduces_once=*/false), request_));
  const auto state = static_cast<uint64_t>(StateBytesOf(model_.config, model_.run).device(v1::DEVICE));
  model_.run.set_memory_budget_bytes(state + left);
  if (left == 0) GTEST_SKIP() << "nothing runs";
  model_.run.set_reduce_gradients(v1::REDUCE_GRADIENTS_STEP);
  const auto refused = MakePlan(model_, request_);
  if (refused.ok()) GTEST_SKIP() << "smaller waves leave room for them";
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("forces")) << "seed " << seed();
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("reduce_gradients step")) << "seed " << seed();
  model_.run.set_reduce_gradients(v1::REDUCE_GRADIENTS_AUTO);
  const PlanResult chosen = Plan();
  for (const v1::StepPlan& step : chosen.plan.steps()) EXPECT_FALSE(step.reduce_gradients_once()) << "seed " << seed();
}

// Copies that share an order may have more in flight than each would have in its own.
TEST_P(ShardedProgramTest, NoCopyTakesMoreInTheSharedOrderThanThePlanSays) {
  if (PpSize(mesh()) == 1) GTEST_SKIP() << "one stage runs one operation after the other";
  const PlanResult result = Plan();
  const server::MemoryOptions options = Options(result.plan.steps(0).reduce_gradients_once());
  const int64_t held = StateBytesOf(model_.config, model_.run).gathering;
  for (int k = 0; k < result.plan.steps_size(); ++k) {
    const v1::StepPlan& step = result.plan.steps(k);
    for (const v1::CopyStages& copy : step.copies()) {
      std::vector<v1::ParameterSweeps> places;
      std::vector<server::StageCluster> own;
      for (const v1::Cluster& cluster : step.clusters()) {
        if (cluster.dp_rank() != copy.dp_rank()) continue;
        places.push_back(cluster.sweeps());
        own.emplace_back();
        if (!cluster.waves().empty()) {
          own.back() = server::StagesOf(options, request_.groups, {&cluster}).clusters.front();
        }
      }
      for (int s = 0; s < copy.orders_size(); ++s) {
        const int64_t peak = PeakOf(copy.orders(s), places, own, static_cast<size_t>(s));
        const v1::StepReport& report = result.report.steps(k + request_.log_prob_passes);
        const auto said = static_cast<int64_t>(report.peak_bytes());
        const auto sums = static_cast<int64_t>(report.gradient_sums_bytes());
        EXPECT_LE(peak + held + sums, said) << "copy " << copy.dp_rank() << ", stage " << s << ", seed " << seed();
      }
    }
  }
}

// A plan that lets a copy run more than the others know of is refused before anything is gathered.
TEST_P(ShardedProgramTest, APlanThatSaysLessThanACopyRunsIsRefused) {
  const PlanResult result = Plan();

  ForRanks(result.plan.steps(0), [&](uint32_t, const RankSizes& sizes, const v1::StepPlan& part) {
    for (int c = 0; c < part.clusters_size(); ++c) {
      if (part.clusters(c).waves().empty()) continue;
      v1::StepPlan missing = part, fewer = part, whole = part;
      missing.mutable_clusters(c)->clear_sweeps();
      EXPECT_THAT(std::string(CheckParameterSweeps(missing, sizes, true).message()), HasSubstr("sweeps are missing"));
      fewer.mutable_clusters(c)->mutable_sweeps()->set_rounds(0);
      EXPECT_THAT(std::string(CheckParameterSweeps(fewer, sizes, true).message()), HasSubstr("sweeps.rounds is 0"));
      for (const bool once : {false, true}) {
        whole.set_reduce_gradients_once(once);
        const std::string message(CheckParameterSweeps(whole, sizes, false).message());
        EXPECT_THAT(message, HasSubstr(once ? "reduce_gradients_once is set: parameters are whole" : "sweeps are set"));
      }
      v1::StepPlan huge = part;
      huge.mutable_clusters(c)->mutable_sweeps()->set_rounds(UINT32_MAX);
      EXPECT_THAT(std::string(CheckParameterSweeps(huge, sizes, true).message()), HasSubstr("at most"));
      if (!RunsOwnPrefix(part.clusters(c))) continue;
      v1::StepPlan no_blocks = part, not_again = part;
      no_blocks.mutable_clusters(c)->mutable_sweeps()->set_prefix_blocks(0);
      EXPECT_THAT(std::string(CheckParameterSweeps(no_blocks, sizes, true).message()), HasSubstr("prefix_blocks is 0"));
      not_again.mutable_clusters(c)->set_prefix_policy(v1::S5);
      not_again.mutable_clusters(c)->mutable_sweeps()->set_prefix_again(false);
      EXPECT_THAT(std::string(CheckParameterSweeps(not_again, sizes, true).message()), HasSubstr("prefix_again"));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Drawn, ShardedProgramTest, ::testing::Range(0U, 60U));
INSTANTIATE_TEST_SUITE_P(DrawnUneven, ShardedProgramTest, ::testing::Range(kUnevenCopies, kUnevenCopies + 20));
// Found among 8,000 of them, where the peak is while a copy holds larger messages than the other has sent since.
INSTANTIATE_TEST_SUITE_P(FoundUneven, ShardedProgramTest, ::testing::Values(5292U, 11679U, 15880U));

}  // namespace
}  // namespace stemma::worker
