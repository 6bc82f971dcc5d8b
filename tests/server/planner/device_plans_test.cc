// Plans for devices whose products run in tiles of rows: their seconds against a count of every product of every wave,
// and the waves of an 8B model.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/cost/block_cost.h"
#include "common/cost/plan_seconds.h"
#include "common/cost/rank_shape.h"
#include "common/cost/state_bytes.h"
#include "server/planner/memory_division.h"
#include "server/planner/planner.h"
#include "server/planner/published_devices.h"
#include "server/planner/sharded_step.h"
#include "tests/common/model/small_configs.h"
#include "tests/server/planner/counted_seconds.h"
#include "tests/testing/draw.h"
#include "tests/testing/namespaces.h"

namespace stemma::testing {
namespace {

constexpr int64_t kTile = 128;

Rates H200() { return server::DefaultRates(RunDtype::kBf16, 1, "cuda NVIDIA H200"); }

PlannerModel DrawModel(Draw& draw) {
  PlannerModel model;
  ModelConfig& c = model.config;
  c.vocab_size = draw.Between(100, 5000);
  c.head_size = 16 * draw.Between(1, 8);
  c.num_kv_heads = draw.Between(1, 4);
  c.num_heads = c.num_kv_heads * draw.Between(1, 4);
  c.hidden_size = 8 * draw.Between(8, 100);
  c.ffn_size = draw.Between(64, 3000);
  c.num_layers = draw.Between(2, 6);
  c.qk_norm = draw.Chance(50);
  if (draw.Chance(30)) c.experts = Experts{draw.Between(4, 16), draw.Between(1, 4)};
  model.run.set_dtype("bf16");
  model.run.set_head_chunk_tokens(static_cast<uint32_t>(draw.Between(100, 2000)));
  model.run.set_offload(v1::OFFLOAD_OFF);
  if (draw.Chance(30)) model.run.set_prefix_block_rows(static_cast<uint32_t>(draw.Between(50, 1500)));
  model.run.set_optimizer_residency(v1::DEVICE);
  model.run.set_memory_budget_bytes(
      static_cast<uint64_t>(StateBytesOf(c, model.run).device(v1::DEVICE) + draw.LogBetween(3e7, 3e10)));
  model.rates = server::DefaultRates(RunDtype::kBf16, 1, draw.Of<std::string>({"cuda NVIDIA H200", "cuda NVIDIA H20"}));
  return model;
}

PlannerRequest DrawRequest(Draw& draw) {
  PlannerRequest request;
  request.whole_rollouts = draw.Chance(40);
  request.schedule = draw.Of<v1::Schedule>({v1::REUSE, v1::DENSE});
  const int64_t groups = draw.Between(1, 5);
  for (int64_t g = 0; g < groups; ++g) {
    PlannerGroup& group = request.groups.emplace_back();
    group.uid = absl::StrCat(g);
    group.prompt_tokens = 1 + draw.LogBetween(1, 6000);
    const int64_t rollouts = draw.Between(1, 12);
    for (int64_t i = 0; i < rollouts; ++i) group.rollouts.push_back({draw.LogBetween(1, 3000)});
  }
  return request;
}

Rates WithoutSums(Rates rates) {
  rates[server::kWaveBackward] = rates[server::kWave];
  return rates;
}

// The counts add the same products in another order.
constexpr double kRoundOff = 1e-9;

TEST(DevicePlansTest, SecondsAreThoseOfEveryProductOfEveryWave) {
  int clusters = 0, waves = 0, blocks = 0, off_without_tiles = 0, restored_kv = 0, restored_dense = 0, head_again = 0;
  std::set<std::pair<int, int>> policies;
  for (uint64_t seed = FirstSeed(); seed < FirstSeed() + 150; ++seed) {
    SCOPED_TRACE(seed);
    Draw draw(seed);
    const PlannerModel model = DrawModel(draw);
    const PlannerRequest request = DrawRequest(draw);
    const auto plan = MakePlan(model, request);
    if (!plan.ok()) continue;  // a budget that is too small
    const v1::StepPlan& step = plan->plan.steps(0);
    for (int i = 0; i < step.clusters_size(); ++i) {
      const ClusterCount count(model, request, step.clusters(i));
      const v1::PhaseSeconds& planned = plan->report.steps(0).clusters(i).seconds();
      const auto expect = [&](double seconds, double counted) { EXPECT_NEAR(seconds, counted, kRoundOff * counted); };
      expect(planned.prefix_forward(), count.PrefixForward(model.rates, kTile));
      expect(planned.suffix(), count.Waves(model.rates, kTile));
      expect(planned.prefix_backward(), count.PrefixBackward(model.rates, kTile));
      // Controls: the count without the sums of weight gradients, and without tiles.
      EXPECT_GT(planned.suffix() - count.Waves(WithoutSums(model.rates), kTile), 1e3 * kRoundOff * planned.suffix());
      off_without_tiles += planned.suffix() - count.Waves(model.rates, 1) > 1e-4 * planned.suffix() ? 1 : 0;
      ++clusters;
      waves += step.clusters(i).waves_size();
      blocks += step.clusters(i).prefix_block_rows() > 0 ? 1 : 0;
      restored_kv += count.RestoresPrefixKv() ? 1 : 0;
      restored_dense += request.schedule == v1::DENSE && step.clusters(i).suffix_policy() >= v1::S1 ? 1 : 0;
      head_again += count.HeadRunsTwice() ? 1 : 0;
      policies.insert({step.clusters(i).prefix_policy(), step.clusters(i).suffix_policy()});
    }
  }
  EXPECT_GT(clusters, 60);
  EXPECT_GT(waves, 2 * clusters);
  EXPECT_GT(blocks, 5);
  EXPECT_GT(restored_kv, 2);
  EXPECT_GT(restored_dense, 3);
  EXPECT_GT(head_again, 10);
  EXPECT_GT(policies.size(), 4u);
  EXPECT_GT(off_without_tiles, clusters * 9 / 10);
}

TEST(DevicePlansTest, AForwardPassIsCountedLikewise) {
  for (uint64_t seed = FirstSeed(); seed < FirstSeed() + 20; ++seed) {
    SCOPED_TRACE(seed);
    Draw draw(seed);
    const PlannerModel model = DrawModel(draw);
    ByteShape shape = RankShape(model.config, model.run);
    shape.row_quantum = kTile;
    const int64_t rows = draw.Between(1, 900);
    const ClusterShape cluster = {.prefix_rows = {1000}, .members = {{.rows = rows, .prefix_rows = 1000}}};
    server::WavePasses passes;
    server::AddWave(shape, cluster.members, passes);
    const double seconds = Seconds(server::ForwardClusterWork(shape, cluster, passes), model.rates).suffix;
    Clock clock(model.config, model.rates, kTile);
    for (int64_t l = 0; l < model.config.num_layers; ++l) {
      clock.LayerForward(rows);
      clock.AttentionForward(rows, 1000);
      clock.Merge(rows);
    }
    const int64_t chunk = model.run.head_chunk_tokens();
    for (int64_t begin = 0; begin < rows; begin += chunk) {
      clock.ProductForward(std::min(chunk, rows - begin), clock.head(), server::kHead);
    }
    EXPECT_NEAR(seconds, clock.seconds(), kRoundOff * seconds);
  }
}

// Its head runs the chunks of the steps, so that its log-probs are their bits. None of them runs twice.
TEST(DevicePlansTest, APassBeforeTheStepsHasTheirChunksOfTheHead) {
  int dearer = 0, passes_differ = 0;
  for (uint64_t seed = FirstSeed(); seed < FirstSeed() + 20; ++seed) {
    SCOPED_TRACE(seed);
    Draw draw(seed);
    const PlannerModel model = DrawModel(draw);
    PlannerRequest request = DrawRequest(draw);
    request.log_prob_passes = 1;
    request.whole_rollouts = false;
    const auto tokens = MakePlan(model, request);
    request.whole_rollouts = true;
    const auto whole = MakePlan(model, request);
    if (!tokens.ok() || !whole.ok()) continue;  // a budget that is too small
    const auto pass_s = [](const server::PlanResult& plan) { return TotalSeconds(plan.report.steps(0).seconds()); };
    const double more_s = PlanSeconds(whole->report) - PlanSeconds(tokens->report);
    const double more_in_pass_s = pass_s(*whole) - pass_s(*tokens);
    passes_differ += more_in_pass_s != 0 ? 1 : 0;
    dearer += more_s > 2 * std::abs(more_in_pass_s) ? 1 : 0;
  }
  EXPECT_GT(passes_differ, 5);
  EXPECT_GT(dearer, 5) << "control: chunks that run twice are the steps'";
}

// Llama3-8B on one H200.
PlannerModel EightB(int64_t device_bytes) {
  PlannerModel model = {.config = Llama3_8B(), .run = {}, .rates = H200()};
  model.config.max_positions = 12288;
  model.run.set_dtype("bf16");
  const server::WorkerMemory memory = {device_bytes, 250'000'000'000, device_bytes};
  model.run = server::DivideMemory(model.config, memory, model.run).value();
  return model;
}

PlannerRequest OneGroupOf(int64_t prompt, int64_t response, int rollouts, v1::Schedule schedule) {
  PlannerRequest request;
  request.schedule = schedule;
  request.groups = {{.uid = "g", .prompt_tokens = prompt, .rollouts = {}}};
  for (int i = 0; i < rollouts; ++i) request.groups[0].rollouts.push_back({response});
  return request;
}

double PhaseSecondsOf(const PlannerModel& model, const PlannerRequest& request) {
  const v1::PhaseSeconds s = MakePlan(model, request)->report.seconds();
  return s.prefix_forward() + s.suffix() + s.prefix_backward();
}

TEST(DevicePlansTest, SeveralSuffixesOfAnEightBModelShareAWave) {
  const PlannerModel model = EightB(141'000'000'000);
  const auto plan = MakePlan(model, OneGroupOf(10240, 2048, 16, v1::AUTO));
  ASSERT_TRUE(plan.ok()) << plan.status();
  const v1::StepPlan& step = plan->plan.steps(0);
  ASSERT_EQ(step.clusters_size(), 1);
  int most = 0;
  for (const v1::Wave& wave : step.clusters(0).waves()) most = std::max(most, wave.members_size());
  EXPECT_GE(most, 4) << plan->report.steps(0).clusters(0).memory_reason();
  EXPECT_LE(step.clusters(0).waves_size(), 4);
}

// Derived from published rates: 15.39 s dense, whose last layer is not pruned: pruned 15.08 s. Reused 4.12 s with one
// suffix a wave and 3.95 s with four. Attention has one rate each way here, and there one for each shape: 2 % of the
// seconds, 3 % of the ratios.
TEST(DevicePlansTest, AnEightBModelsSecondsAreThoseDerivedFromPublishedRates) {
  const double dense_s = 15.08;
  PlannerModel model = EightB(int64_t{1} << 40);
  const double planned_dense_s = PhaseSecondsOf(model, OneGroupOf(10240, 2048, 16, v1::DENSE));
  EXPECT_NEAR(planned_dense_s, dense_s, 0.02 * dense_s);
  for (const auto& [wave_suffixes, reuse_s] : {std::pair{1u, 4.12}, std::pair{4u, 3.95}}) {
    model.run.set_wave_suffixes(wave_suffixes);
    const double planned_s = PhaseSecondsOf(model, OneGroupOf(10240, 2048, 16, v1::REUSE));
    EXPECT_NEAR(planned_s, reuse_s, 0.02 * reuse_s);
    EXPECT_NEAR(planned_dense_s / planned_s, dense_s / reuse_s, 0.03 * dense_s / reuse_s);
  }
  model.run.set_wave_suffixes(0);
  const double ratio = planned_dense_s / PhaseSecondsOf(model, OneGroupOf(10240, 2048, 16, v1::AUTO));
  EXPECT_GT(ratio, 3.7);
  EXPECT_LT(ratio, 3.9);
}

TEST(DevicePlansTest, AWaveOfOneRowTakesWhatItsWeightsTake) {
  const PlannerModel model = EightB(141'000'000'000);
  ByteShape shape = RankShape(model.config, model.run);
  shape.row_quantum = model.rates.row_quantum;
  const ClusterShape cluster = {.prefix_rows = {1000}, .members = {{.rows = 1, .prefix_rows = 1000}}};
  server::WavePasses one;
  server::AddWave(shape, cluster.members, one);
  const server::ClusterWorkSums sums(shape, cluster);
  // But for the embedding's, which no product reads.
  const auto weights = static_cast<double>(model.config.num_parameters() - 128256 * 4096);
  const double read_s = 2 * weights / 4.3e12, summed_s = 8 * weights / 4.3e12;
  const double forward_s = server::Seconds(sums.SuffixForwardOfStep(one), model.rates);
  EXPECT_NEAR(forward_s, read_s, 0.01 * read_s);
  EXPECT_NEAR(server::Seconds(sums.Suffix(v1::S0, one), model.rates) - forward_s,
              summed_s + read_s + 128 * 2 * weights / 7.9e14, 0.01 * summed_s);
}

TEST(DevicePlansTest, RowsWorthPackingFollowTheDevicesRates) {
  const PlannerModel model = EightB(141'000'000'000);
  const auto rows = [&](const Rates& rates) {
    const MemoryOptions options = server::MemoryOptionsOf(model.config, model.run, rates, /*forward_only=*/false);
    EXPECT_EQ(options.wave_rows, options.cluster_prefix_rows);
    EXPECT_EQ(options.shape.row_quantum, rates.row_quantum);
    return options.wave_rows;
  };
  EXPECT_EQ(rows(server::DefaultRates(RunDtype::kBf16, 2, "cpu")), 2048);
  Rates rates = H200();
  // A 64th of 2.14e-12 s a weight, by 6 FLOPs of 790 TFLOP/s a row.
  EXPECT_NEAR(static_cast<double>(rows(rates)), 64 * 2.142e-12 / (6 / 7.9e14), 20);
  rates[server::kWave] = rates[server::kWaveBackward] = 0;  // as a fit may have it
  EXPECT_EQ(rows(rates), 2048);
  rates = H200();
  rates[server::kLinear] = 0;
  EXPECT_EQ(rows(rates), 16 * 2048);
}

// A wave reads all experts, of which a row passes some: so more rows are worth it.
TEST(DevicePlansTest, RowsWorthPackingAndGatheringGrowWithTheExpertsThatARowDoesNotPass) {
  PlannerModel model = EightB(141'000'000'000);
  model.config.ffn_size = 512;
  model.run.mutable_mesh()->set_dp(2);
  model.rates[server::kLinear] *= 2;  // so that neither is as many as there may be
  const auto rows = [&](int64_t per_token) {
    model.config.experts = Experts{.count = 16, .per_token = per_token};
    const MemoryOptions options = server::MemoryOptionsOf(model.config, model.run, model.rates, /*forward_only=*/false);
    return std::pair(static_cast<double>(options.wave_rows),
                     static_cast<double>(server::RowsWorthGathering(model, /*sums_gradients=*/false)));
  };
  const auto [packed_all, gathered_all] = rows(16);
  const double read = WeightsReadForEachUsed(model.config);
  EXPECT_EQ(read, 1);
  const auto [packed, gathered] = rows(2);
  const double read_of_few = WeightsReadForEachUsed(model.config);
  EXPECT_GT(read_of_few, 1.5);
  EXPECT_NEAR(gathered / gathered_all, read_of_few, 0.01) << gathered_all << " rows";
  EXPECT_NEAR(packed / packed_all, read_of_few, 0.01) << packed_all << " rows";
}

}  // namespace
}  // namespace stemma::testing
