// The pass over log-probs before a request's first step runs the clusters of its steps: so its log-probs are the bits
// of their forward. Requests, budgets and meshes are drawn; STEMMA_SEED draws others.
#include "server/planner/log_prob_pass.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/mesh.h"
#include "common/cost/state_bytes.h"
#include "server/planner/memory_division.h"
#include "server/planner/planner.h"
#include "server/planner/request_options.h"
#include "tests/server/planner/cluster_shapes.h"
#include "tests/server/planner/split_plans.h"
#include "tests/testing/draw.h"
#include "tests/testing/namespaces.h"

namespace stemma::testing {
namespace {

using server::ForwardOfStep;
using server::MemoryOptions;
using server::PackedCluster;
using server::PackingGroup;
using server::PackingOf;
using server::RequestOptions;

// A model on a mesh, and an update with passes, drawn.
struct Drawn {
  explicit Drawn(uint32_t seed) : draw(FirstSeed() + seed) {
    model.config = BenchModel();
    model.config.max_positions = 4096;
    model.rates = BenchRates();
    model.run.set_dtype(draw.Chance(50) ? "fp32" : "bf16");
    model.run.set_head_chunk_tokens(512);
    *model.run.mutable_mesh() = MakeMesh({.dp = static_cast<uint32_t>(draw.Between(1, 3)),
                                          .pp = static_cast<uint32_t>(draw.Between(1, 3)),
                                          .cp = static_cast<uint32_t>(draw.Between(1, 3)),
                                          .tp = static_cast<uint32_t>(draw.Between(1, 2))});
    model.run.set_split_groups(static_cast<v1::Split>(draw.Between(v1::SPLIT_AUTO, v1::SPLIT_OFF)));
    if (draw.Chance(30)) model.run.set_shard_parameters(v1::SHARD_PARAMETERS_ON);
    SetBudget(draw.Between(80, 400) * (1 << 20));
    for (int64_t g = draw.Between(1, 12); g > 0; --g) {
      PlannerGroup& group = request.groups.emplace_back();
      group.uid = absl::StrCat("g", request.groups.size());
      group.prompt_tokens = draw.Between(1, 1500);
      for (int64_t i = draw.Between(1, 9); i > 0; --i) {
        group.rollouts.push_back({draw.Between(1, 500), draw.Between(0, 9) > 0});
      }
    }
    request.mini_batch_groups = draw.Between(0, 5);
    request.epochs = draw.Between(1, 2);
    request.shuffle = draw.Chance(50);
    request.payload_digest = absl::StrCat(seed);
    request.log_prob_passes = static_cast<int>(draw.Between(1, 2));
  }

  void SetBudget(int64_t left_bytes) {
    const int64_t state = StateBytesOf(model.config, model.run).device(v1::DEVICE);
    model.run.set_memory_budget_bytes(static_cast<uint64_t>(state + left_bytes));
  }

  // Nothing: no plan fits the budget.
  std::optional<PlanResult> Plan() const {
    absl::StatusOr<PlanResult> plan = MakePlan(model, request);
    if (plan.ok()) return *std::move(plan);
    EXPECT_EQ(plan.status().code(), absl::StatusCode::kResourceExhausted) << plan.status();
    return std::nullopt;
  }

  Draw draw;
  PlannerModel model;
  PlannerRequest request;
};

class LogProbPassTest : public ::testing::TestWithParam<uint32_t> {
 protected:
  Drawn drawn_{GetParam()};
  PlannerModel& model_ = drawn_.model;
  PlannerRequest& request_ = drawn_.request;
  const ::testing::ScopedTrace trace_{__FILE__, __LINE__, absl::StrCat("STEMMA_SEED ", FirstSeed() + GetParam())};
};

// The steps that compute each group once.
std::vector<v1::StepPlan> FirstEpoch(const PlanResult& result) {
  std::vector<v1::StepPlan> steps;
  for (const v1::StepPlan& step : result.plan.steps()) {
    if (step.epoch() == 0) steps.push_back(step);
  }
  return steps;
}

// What decides the order in which a cluster's numbers are added.
v1::Cluster Arithmetic(const v1::Cluster& cluster) {
  v1::Cluster kept;
  *kept.mutable_prefix_groups() = cluster.prefix_groups();
  *kept.mutable_waves() = cluster.waves();
  kept.set_prefix_block_rows(cluster.prefix_block_rows());
  kept.set_dp_rank(cluster.dp_rank());
  *kept.mutable_helper_ranks() = cluster.helper_ranks();
  if (cluster.has_owner_rank()) kept.set_owner_rank(cluster.owner_rank());
  kept.set_regather_prefix(cluster.regather_prefix());
  return kept;
}

// Those of each rank, in its order, that are not there for the sake of other ranks.
std::map<uint32_t, std::vector<std::string>> ByRank(const std::vector<v1::StepPlan>& steps) {
  std::map<uint32_t, std::vector<std::string>> clusters;
  for (const v1::StepPlan& step : steps) {
    for (const v1::Cluster& cluster : step.clusters()) {
      if (cluster.waves().empty()) continue;
      clusters[cluster.dp_rank()].push_back(Arithmetic(cluster).SerializeAsString());
    }
  }
  return clusters;
}

TEST_P(LogProbPassTest, RunsTheClustersOfTheFirstSteps) {
  const std::optional<PlanResult> result = drawn_.Plan();
  if (!result) return;
  const v1::StepPlan& pass = result->plan.log_prob_pass();
  EXPECT_EQ(ByRank({pass}), ByRank(FirstEpoch(*result)));
  EXPECT_EQ(pass.groups_size(), static_cast<int>(request_.groups.size()));
  for (const v1::Cluster& cluster : pass.clusters()) {
    EXPECT_EQ(cluster.prefix_policy(), v1::TAPE_POLICY_UNSPECIFIED);
    EXPECT_EQ(cluster.suffix_policy(), v1::TAPE_POLICY_UNSPECIFIED);
    EXPECT_FALSE(cluster.offload_prefix());
    EXPECT_EQ(cluster.offload_headroom_bytes(), 0u);
  }
  const v1::StepReport& report = result->report.steps(0);
  if (model_.run.mesh().dp() > 1) ExpectSplitsHold(pass, request_);
  if (model_.run.mesh().dp() > 1 && model_.run.mesh().pp() == 1) ExpectReportHolds(pass, report, request_);
  EXPECT_LE(report.peak_bytes(), model_.run.memory_budget_bytes());
  EXPECT_EQ(report.seconds().prefix_backward(), 0);
  EXPECT_EQ(report.seconds().apply(), 0);
  std::vector<std::string> split, split_in_steps;  // every rank has them in this order
  for (const v1::SplitGroup& group : report.split_groups()) split.push_back(group.uid());
  for (size_t i = 1; i <= FirstEpoch(*result).size(); ++i) {
    for (const v1::SplitGroup& group : result->report.steps(static_cast<int>(i)).split_groups()) {
      split_in_steps.push_back(group.uid());
    }
  }
  EXPECT_EQ(split, split_in_steps);
  uint32_t groups = 0, of_steps = 0;
  for (const v1::RankReport& rank : report.ranks()) groups += rank.groups();
  for (size_t i = 1; i <= FirstEpoch(*result).size(); ++i) {
    for (const v1::RankReport& rank : result->report.steps(static_cast<int>(i)).ranks()) of_steps += rank.groups();
  }
  EXPECT_EQ(groups, of_steps);
}

// What a cluster of the pass is said to take is what it is chosen by where a pass is all that is asked for.
TEST_P(LogProbPassTest, CountsBytesAndSecondsAsAForwardOnlyRequestDoes) {
  request_.log_prob_passes = 0;
  request_.forward_only = true;
  request_.mini_batch_groups = 0;
  request_.epochs = 1;
  request_.shuffle = false;
  const std::optional<PlanResult> result = drawn_.Plan();
  if (!result) return;
  const MemoryOptions options = RequestOptions(model_, request_, /*forward_only=*/true, /*sums_gradients=*/false);
  int at = 0;  // clusters that are there for other ranks have no report
  std::vector<v1::Cluster> clusters;
  for (const v1::Cluster& cluster : result->plan.steps(0).clusters()) {
    if (!cluster.waves().empty()) clusters.push_back(cluster);
  }
  ASSERT_EQ(result->report.steps(0).clusters_size(), static_cast<int>(clusters.size()));
  for (const v1::Cluster& cluster : clusters) {
    const v1::ClusterReport& report = result->report.steps(0).clusters(at++);
    const PackedCluster packed = ForwardOfStep(options, request_.groups, cluster);
    EXPECT_EQ(Arithmetic(packed.cluster).SerializeAsString(), Arithmetic(cluster).SerializeAsString());
    EXPECT_EQ(packed.memory.prefix_forward.peak(), static_cast<int64_t>(report.prefix_forward().peak()));
    EXPECT_EQ(packed.memory.suffix.hot_set, static_cast<int64_t>(report.suffix().hot_set()));
    EXPECT_EQ(packed.memory.suffix.peak(), static_cast<int64_t>(report.suffix().peak()));
    const v1::PhaseSeconds& seconds = report.seconds();
    EXPECT_NEAR(packed.memory.seconds.prefix_forward, seconds.prefix_forward(), 1e-9 * seconds.prefix_forward());
    // Sums in another order; what tensor-parallel ranks send is rounded up by wave here, and for all waves there.
    const double tolerance = model_.run.mesh().tp() > 1 ? 1e-2 : 1e-9;
    EXPECT_NEAR(packed.memory.seconds.suffix, seconds.suffix(), tolerance * seconds.suffix());
    EXPECT_EQ(packed.memory.cut_waves > 0, absl::StrContains(report.memory_reason(), "cut by rows"));
  }
}

// Packing again what a cluster computes loses nothing of it.
TEST_P(LogProbPassTest, PackingOfAClusterIsAllThatItComputes) {
  const std::optional<PlanResult> result = drawn_.Plan();
  if (!result) return;
  for (const v1::StepPlan& step : result->plan.steps()) {
    for (const v1::Cluster& cluster : step.clusters()) {
      std::multiset<std::tuple<uint32_t, uint32_t, int64_t>> expected, packed;
      for (const v1::Wave& wave : cluster.waves()) {
        for (const v1::WaveMember& member : wave.members()) {
          const PlannerGroup& group = request_.groups[member.group()];
          expected.emplace(member.group(), member.rollout(), group.rollouts[member.rollout()].response_tokens);
        }
      }
      std::vector<uint32_t> reused;
      for (const PackingGroup& group : PackingOf(request_.groups, cluster)) {
        for (const auto& member : group.members) packed.emplace(group.group, member.rollout, member.rows);
        EXPECT_EQ(group.uid, request_.groups[group.group].uid);
        EXPECT_EQ(group.prefix_rows, request_.groups[group.group].prompt_tokens - 1);
        EXPECT_EQ(group.borrowed, cluster.has_owner_rank());
        EXPECT_EQ(group.split, cluster.has_owner_rank() || !cluster.helper_ranks().empty());
        if (group.reuse) reused.push_back(group.group);
      }
      EXPECT_EQ(packed, expected);
      std::vector<uint32_t> prefixes(cluster.prefix_groups().begin(), cluster.prefix_groups().end());
      std::sort(prefixes.begin(), prefixes.end());
      EXPECT_EQ(reused, prefixes);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Drawn, LogProbPassTest, ::testing::Range(0U, 60U));

// By rank and group, the rollouts that steps compute.
std::multiset<std::tuple<uint32_t, uint32_t, uint32_t>> RolloutsOf(const std::vector<v1::StepPlan>& steps) {
  std::multiset<std::tuple<uint32_t, uint32_t, uint32_t>> rollouts;
  for (const v1::StepPlan& step : steps) {
    for (const v1::Cluster& cluster : step.clusters()) {
      for (const v1::Wave& wave : cluster.waves()) {
        for (const v1::WaveMember& m : wave.members()) rollouts.emplace(cluster.dp_rank(), m.group(), m.rollout());
      }
    }
  }
  return rollouts;
}

// Beside a checkpoint's weights a step's way may not fit: the pass then has another, and all of it still fits.
TEST(LogProbPassBesideACheckpointTest, PacksAnewWhatDoesNotFit) {
  int planned = 0, packed_anew = 0;
  for (uint32_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(absl::StrCat("STEMMA_SEED ", FirstSeed() + seed));
    Drawn drawn(seed);
    drawn.request.reads_checkpoint = true;
    const auto weights = static_cast<int64_t>(StateBytesOf(drawn.model.config, drawn.model.run).weights);
    drawn.SetBudget(weights + drawn.draw.Between(1, 80) * (1 << 20));
    const std::optional<PlanResult> result = drawn.Plan();
    if (!result) continue;
    const v1::StepPlan& pass = result->plan.log_prob_pass();
    EXPECT_LE(result->report.steps(0).peak_bytes(), drawn.model.run.memory_budget_bytes());
    EXPECT_EQ(RolloutsOf({pass}), RolloutsOf(FirstEpoch(*result))) << "each on the rank that its step has it on";
    if (drawn.model.run.mesh().dp() > 1) ExpectSplitsHold(pass, drawn.request);
    ++planned;
    packed_anew += ByRank({pass}) == ByRank(FirstEpoch(*result)) ? 0 : 1;
  }
  std::printf("%d planned, %d of them packed anew\n", planned, packed_anew);
  EXPECT_GT(planned, 30);
  EXPECT_GT(packed_anew, 3);
}

}  // namespace
}  // namespace stemma::testing
