// Seconds of pipeline stages: their work adds up to a whole model's and what travels between them, and a plan's seconds
// are those of its orders.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "common/base/mesh.h"
#include "common/cost/pipeline_cost.h"
#include "common/cost/rank_shape.h"
#include "server/planner/cost_model.h"
#include "server/planner/stage_orders.h"
#include "server/planner/stage_plan.h"
#include "tests/server/planner/cluster_shapes.h"
#include "tests/server/planner/drawn_clusters.h"
#include "tests/testing/draw.h"
#include "tests/testing/namespaces.h"

namespace stemma::testing {
namespace {

using server::ClusterWorkSums;
using server::Work;

constexpr uint32_t kDrawnCosts = 60;

struct Drawn {
  ByteShape whole;
  std::vector<ByteShape> stages;
  server::ClusterShape cluster;
  PrefixShape prefix;
  v1::TapePolicy suffix_policy = v1::S0;
  int64_t waves = 1;
  int64_t wave_rows = 0;  // of all waves
};

Drawn DrawWork(uint32_t seed) {
  Draw draw(seed);
  std::mt19937_64 random(seed);
  Drawn drawn;
  ModelConfig model = BenchModel();
  model.num_layers = draw.Between(2, 9);
  v1::RunConfig run;
  run.set_dtype("bf16");
  run.set_head_chunk_tokens(512);
  *run.mutable_mesh() = MakeMesh({.pp = static_cast<uint32_t>(draw.Between(2, model.num_layers)),
                                  .cp = static_cast<uint32_t>(draw.Between(1, 2)),
                                  .tp = static_cast<uint32_t>(draw.Between(1, 2))});
  drawn.whole = RankShape(model, run);
  drawn.stages = StageShapes(model, run);
  drawn.cluster = DrawCluster(static_cast<int>(draw.Between(1, 3)), draw.Chance(70), random);
  drawn.prefix = {.rows = server::PackedPrefixRows(drawn.cluster),
                  .lengths = drawn.cluster.prefix_rows,
                  .block_rows = draw.Chance(50) ? draw.Between(16, 600) : 0,
                  .policy = static_cast<v1::TapePolicy>(draw.Between(v1::S0, v1::S5)),
                  .regather = draw.Chance(50)};
  drawn.prefix.offload = drawn.prefix.policy != v1::S5 && draw.Chance(50);
  drawn.suffix_policy = static_cast<v1::TapePolicy>(draw.Between(v1::S0, v1::S4));
  drawn.waves = draw.Between(1, 5);
  for (const server::MemberShape& member : drawn.cluster.members) {
    drawn.wave_rows += member.rows + (member.dense ? member.prefix_rows : 0);
  }
  return drawn;
}

// Takes off what a stage sends to its neighbours.
void TakeOff(int64_t bytes, int64_t messages, Work& work) {
  work[server::kStageByte] -= static_cast<double>(bytes);
  work[server::kStageMessage] -= static_cast<double>(messages);
}

void ExpectSame(const Work& stages, const Work& whole, const char* what) {
  for (int i = 0; i < server::kNumRates; ++i) {
    const auto at = static_cast<size_t>(i);
    EXPECT_NEAR(stages.units[at], whole.units[at], 1e-9 * whole.units[at]) << what << ", " << server::kRateNames[at];
  }
}

TEST(StageCostTest, TheWorkOfStagesIsThatOfAWholeModelAndWhatTravels) {
  for (uint32_t seed = FirstSeed(); seed < FirstSeed() + kDrawnCosts; ++seed) {
    SCOPED_TRACE("STEMMA_SEED " + std::to_string(seed));
    const Drawn drawn = DrawWork(seed);
    Work prefix_forward, prefix_backward, suffix, forward, forward_only, regather;
    for (const ByteShape& stage : drawn.stages) {
      const ClusterWorkSums sums(stage, drawn.cluster);
      if (drawn.prefix.rows > 0) {
        const PipelineSentBytes sent = PrefixPipelineSent(stage, drawn.prefix);
        prefix_forward += sums.PrefixForward(drawn.prefix);
        TakeOff(sent.forward, sent.forward_messages, prefix_forward);
        prefix_backward += sums.PrefixBackward(drawn.prefix);
        TakeOff(sent.backward, sent.backward_messages, prefix_backward);
        regather += sums.Regather(drawn.prefix, drawn.waves, /*forward_only=*/false);
      }
      const PipelineSentBytes sent = WavePipelineSent(stage, drawn.wave_rows);
      suffix += sums.Suffix(drawn.suffix_policy, drawn.waves);
      TakeOff(sent.forward + sent.backward, drawn.waves * (sent.forward_messages + sent.backward_messages), suffix);
      forward += sums.SuffixForwardOfStep(drawn.waves);
      TakeOff(sent.forward, drawn.waves * sent.forward_messages, forward);
      forward_only += sums.SuffixForwardOnly(drawn.waves);
      TakeOff(sent.forward, drawn.waves * sent.forward_messages, forward_only);
    }
    const ClusterWorkSums whole(drawn.whole, drawn.cluster);
    if (drawn.prefix.rows > 0) {
      ExpectSame(prefix_forward, whole.PrefixForward(drawn.prefix), "Phase A");
      ExpectSame(prefix_backward, whole.PrefixBackward(drawn.prefix), "Phase C");
      ExpectSame(regather, whole.Regather(drawn.prefix, drawn.waves, false), "gathering again");
    }
    ExpectSame(suffix, whole.Suffix(drawn.suffix_policy, drawn.waves), "Phase B");
    ExpectSame(forward, whole.SuffixForwardOfStep(drawn.waves), "Phase B's forward");
    ExpectSame(forward_only, whole.SuffixForwardOnly(drawn.waves), "a pass's suffixes");
  }
}

// Two stages, two waves of one suffix each behind one prefix.
TEST(StageCostTest, OperationsOfACopyCostWhatTheirStagesDo) {
  server::MemoryOptions options = BenchMemory(int64_t{1} << 40);
  v1::RunConfig run;
  run.set_dtype("fp32");
  run.set_head_chunk_tokens(512);
  *run.mutable_mesh() = MakeMesh({.pp = 2});
  options.shape = RankShape(BenchModel(), run);
  options.stages = StageShapes(BenchModel(), run);
  options.rates[server::kStageByte] = 1e-9;
  options.rates[server::kStageMessage] = 1e-3;
  std::vector<server::PlannerGroup> groups = {{.uid = "g", .prompt_tokens = 101, .rollouts = {{30}, {70}}}};
  v1::Cluster cluster;
  cluster.add_prefix_groups(0);
  cluster.set_prefix_policy(v1::S0);
  cluster.set_suffix_policy(v1::S2);
  for (const uint32_t rollout : {0, 1}) {
    v1::Wave& wave = *cluster.add_waves();
    wave.set_layout(v1::PACKED);
    wave.add_members()->set_rollout(rollout);
  }
  const StageQuestion question = server::StagesOf(options, groups, {&cluster});
  ASSERT_EQ(question.clusters.size(), 1U);
  ASSERT_EQ(question.clusters[0].rounds.size(), 2U);
  const server::ClusterShape second = {.prefix_rows = {}, .members = {{.rows = 70, .prefix_rows = 100}}};
  const server::ClusterShape prefixes = {.prefix_rows = {100}, .members = {}};
  const PrefixShape prefix = {.rows = 100, .lengths = {100}};
  for (size_t s = 0; s < 2; ++s) {
    const ClusterWorkSums waves(options.stages[s], second), of_prefix(options.stages[s], prefixes);
    const double forward_s = server::Seconds(waves.SuffixForwardOfStep(1), options.rates);
    const server::StageCost& round = question.clusters[0].rounds[1][s];
    EXPECT_DOUBLE_EQ(round.forward_s, forward_s);
    EXPECT_DOUBLE_EQ(round.forward_s + round.backward_s, server::Seconds(waves.Suffix(v1::S2, 1), options.rates));
    const server::StageCost& own = question.clusters[0].prefixes[s];
    EXPECT_DOUBLE_EQ(own.forward_s, server::Seconds(of_prefix.PrefixForward(prefix), options.rates));
    EXPECT_DOUBLE_EQ(own.backward_s, server::Seconds(of_prefix.PrefixBackward(prefix), options.rates));
    // What travels is a part of them: 70 rows of 512 numbers in one message.
    server::MemoryOptions free = options;
    free.rates[server::kStageByte] = free.rates[server::kStageMessage] = 0;
    const StageQuestion without = server::StagesOf(free, groups, {&cluster});
    const double message_s = 1e-3 + 70 * 512 * 4 * 1e-9;
    const server::StageCost& silent = without.clusters[0].rounds[1][s];
    EXPECT_NEAR(round.forward_s - silent.forward_s, s == 0 ? message_s : 0, 1e-12);
    EXPECT_NEAR(round.backward_s - silent.backward_s, s == 1 ? message_s : 0, 1e-12);
  }
}

// Every operation waits for the same one of the stage before, and for the stage's own before it.
TEST(StageCostTest, APassWithoutBackwardRunsStageAfterStage) {
  for (uint32_t seed = FirstSeed(); seed < FirstSeed() + kDrawnCosts; ++seed) {
    SCOPED_TRACE("STEMMA_SEED " + std::to_string(seed));
    Draw draw(seed);
    const auto stages = static_cast<size_t>(draw.Between(1, 5));
    server::StageQuestion question = {.stages = stages, .clusters = {}};
    std::vector<server::StageCosts> all;
    const auto drawn_costs = [&] {
      server::StageCosts costs;
      for (size_t s = 0; s < stages; ++s) {
        costs.push_back({.forward_s = static_cast<double>(draw.Between(1, 50)) / 16,
                         .forward_bytes = draw.Between(0, 100),
                         .kept_bytes = draw.Between(0, 100)});
      }
      all.push_back(costs);
      return costs;
    };
    std::vector<int64_t> peaks(stages);
    for (int64_t c = draw.Between(1, 4); c > 0; --c) {
      server::StageCluster& cluster = question.clusters.emplace_back();
      if (draw.Chance(60)) cluster.prefixes = drawn_costs();
      for (int64_t r = draw.Between(1, 4); r > 0; --r) {
        cluster.rounds.push_back(drawn_costs());
        for (size_t s = 0; s < stages; ++s) {
          const int64_t kept = cluster.prefixes.empty() ? 0 : cluster.prefixes[s].kept_bytes;
          const int64_t own = cluster.prefixes.empty() ? 0 : cluster.prefixes[s].forward_bytes;
          peaks[s] = std::max({peaks[s], own, kept + cluster.rounds.back()[s].forward_bytes});
        }
      }
    }
    const server::StageOrders orders = server::OrderForwards(question);
    // The longest path through operations and stages, one step down or right at a time.
    std::vector<std::vector<double>> ends(all.size(), std::vector<double>(stages));
    for (size_t i = 0; i < all.size(); ++i) {
      for (size_t s = 0; s < stages; ++s) {
        const double before = std::max(i > 0 ? ends[i - 1][s] : 0, s > 0 ? ends[i][s - 1] : 0);
        ends[i][s] = before + all[i][s].forward_s;
        EXPECT_EQ(orders.stages[s].operations[i].end_s, ends[i][s]);
      }
    }
    EXPECT_EQ(orders.end_s, ends.back().back());
    for (size_t s = 0; s < stages; ++s) {
      EXPECT_EQ(orders.stages[s].busy_s + orders.stages[s].idle_s, orders.end_s);
      EXPECT_EQ(orders.stages[s].peak_bytes, peaks[s]);
    }
  }
}

}  // namespace
}  // namespace stemma::testing
