// Plans for context-parallel ranks: who computes which waves, and how K/V are kept. Requests, budgets and meshes are
// drawn; STEMMA_SEED draws others.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/mesh.h"
#include "common/cost/rank_shape.h"
#include "common/cost/state_bytes.h"
#include "common/cost/wave_bytes.h"
#include "server/planner/member_dealing.h"
#include "server/planner/memory_division.h"
#include "server/planner/planner.h"
#include "tests/server/planner/cluster_shapes.h"
#include "tests/server/planner/split_plans.h"
#include "tests/testing/draw.h"
#include "tests/testing/namespaces.h"

namespace stemma::testing {
namespace {

using server::MemberShape;
using ::testing::HasSubstr;
using ::testing::Not;

class ContextPlansTest : public ::testing::TestWithParam<uint32_t> {
 protected:
  ContextPlansTest() : draw_(FirstSeed() + GetParam()) {
    model_.config = BenchModel();
    model_.config.max_positions = 4096;
    model_.run.set_dtype(draw_.Between(0, 1) == 0 ? "fp32" : "bf16");
    model_.run.set_head_chunk_tokens(512);
    *model_.run.mutable_mesh() = MakeMesh({.dp = static_cast<uint32_t>(draw_.Between(1, 3)),
                                           .cp = static_cast<uint32_t>(draw_.Between(2, 4)),
                                           .tp = static_cast<uint32_t>(draw_.Between(1, 2))});
    model_.run.set_split_groups(static_cast<v1::Split>(draw_.Between(v1::SPLIT_AUTO, v1::SPLIT_OFF)));
    left_bytes_ = draw_.Between(80, 300) * (1 << 20);
    SetBudget();
    for (int64_t g = draw_.Between(1, 12); g > 0; --g) {
      PlannerGroup& group = request_.groups.emplace_back();
      group.uid = absl::StrCat("g", request_.groups.size());
      group.prompt_tokens = draw_.Between(1, 1500);
      for (int64_t i = draw_.Between(1, 12); i > 0; --i) {
        group.rollouts.push_back({draw_.Between(1, 500), draw_.Between(0, 9) > 0});
      }
    }
    request_.mini_batch_groups = draw_.Between(0, 1) * draw_.Between(1, 8);
    request_.payload_digest = absl::StrCat(GetParam());
    request_.log_prob_passes = static_cast<int>(draw_.Between(0, 1));
  }

  // The mesh decides what the state takes.
  void SetBudget() {
    const int64_t state = StateBytesOf(model_.config, model_.run).device(v1::DEVICE);
    model_.run.set_memory_budget_bytes(static_cast<uint64_t>(state + left_bytes_));
  }
  PlanResult Plan() const {
    auto plan = MakePlan(model_, request_);
    EXPECT_TRUE(plan.ok()) << "STEMMA_SEED " << FirstSeed() + GetParam() << ": " << plan.status();
    return plan.ok() ? *std::move(plan) : PlanResult{};
  }
  std::vector<v1::StepPlan> Steps(const PlanResult& result) const {
    std::vector<v1::StepPlan> steps(result.plan.steps().begin(), result.plan.steps().end());
    if (request_.log_prob_passes > 0) steps.push_back(result.plan.log_prob_pass());
    return steps;
  }
  uint32_t cp() const { return CpSize(model_.run.mesh()); }

  // A member as the cluster computes it.
  MemberShape ShapeOf(const v1::Cluster& cluster, const v1::WaveMember& member) const {
    const auto& shared = cluster.prefix_groups();
    const PlannerGroup& group = request_.groups[member.group()];
    const auto at = std::find(shared.begin(), shared.end(), member.group());
    return {.rows = group.rollouts[member.rollout()].response_tokens,
            .prefix_rows = group.prompt_tokens - 1,
            .dense = at == shared.end(),
            .prefix = at == shared.end() ? 0 : at - shared.begin()};
  }

  // The one of a wave that is cut.
  MemberShape ShapeOf(const v1::Cluster& cluster, const v1::Wave& wave) const {
    return ShapeOf(cluster, wave.members(0));
  }

  Draw draw_;
  int64_t left_bytes_ = 0;  // to activations
  PlannerModel model_;
  PlannerRequest request_;
};

// Several ranks may have waves of a group, which is one group all the same.
TEST_P(ContextPlansTest, AReportNamesEachGroupOfAClusterOnce) {
  const PlanResult result = Plan();
  for (const v1::StepReport& step : result.report.steps()) {
    for (const v1::ClusterReport& cluster : step.clusters()) {
      std::multiset<std::string> uids(cluster.reuse_uids().begin(), cluster.reuse_uids().end());
      uids.insert(cluster.dense_uids().begin(), cluster.dense_uids().end());
      EXPECT_EQ(std::set<std::string>(uids.begin(), uids.end()).size(), uids.size()) << FirstSeed() + GetParam();
    }
  }
}

TEST_P(ContextPlansTest, EachRolloutIsInOneWaveAndWavesStandRankByRank) {
  for (const v1::StepPlan& step : Steps(Plan())) {
    std::set<std::pair<uint32_t, uint32_t>> seen;
    for (const v1::Cluster& cluster : step.clusters()) {
      uint32_t before = 0;
      bool cuts = true;  // waves that are cut come first
      for (const v1::Wave& wave : cluster.waves()) {
        EXPECT_TRUE(cuts || !wave.cut_rows());
        cuts = wave.cut_rows();
        if (cuts) {
          EXPECT_EQ(wave.members_size(), 1);
          EXPECT_EQ(wave.layout(), v1::ONE_BY_ONE);
          const MemberShape member = ShapeOf(cluster, wave);
          EXPECT_TRUE(!member.dense || member.prefix_rows == 0);
          EXPECT_GE(member.rows, 2 * cp());
        }
        EXPECT_LT(wave.cp_rank(), cp());
        EXPECT_GE(wave.cp_rank(), before);
        before = wave.cp_rank();
        EXPECT_GT(wave.members_size(), 0);
        for (const v1::WaveMember& member : wave.members()) {
          EXPECT_TRUE(seen.emplace(member.group(), member.rollout()).second);
        }
      }
    }
    for (const uint32_t g : step.groups()) {
      for (uint32_t i = 0; i < request_.groups[g].rollouts.size(); ++i) {
        EXPECT_EQ(seen.contains({g, i}), request_.groups[g].rollouts[i].run) << g << "/" << i;
      }
    }
  }
}

TEST_P(ContextPlansTest, RanksOfAClusterHaveAboutAsMuchToDo) {
  const ModelConfig config = RankShape(model_.config, model_.run).config;
  for (const v1::StepPlan& step : Steps(Plan())) {
    for (const v1::Cluster& cluster : step.clusters()) {
      std::vector<double> loads(cp());
      double sum = 0, largest = 0;
      for (const v1::Wave& wave : cluster.waves()) {
        for (const v1::WaveMember& member : wave.members()) {
          const double flops = server::MemberFlops(config, ShapeOf(cluster, member));
          sum += flops;
          for (uint32_t rank = 0; rank < cp(); ++rank) {
            if (wave.cut_rows()) loads[rank] += flops / cp();
          }
          if (wave.cut_rows()) continue;
          loads[wave.cp_rank()] += flops;
          largest = std::max(largest, flops);
        }
      }
      EXPECT_LE(*std::max_element(loads.begin(), loads.end()), (sum / cp() + largest) * (1 + 1e-12));
    }
  }
}

// Phase B again, wave by wave, from the plan alone.
TEST_P(ContextPlansTest, EveryWaveFitsTheBudgetBesideItsPrefixes) {
  const ByteShape shape = RankShape(model_.config, model_.run);
  const int64_t budget = ActivationBytes(model_.config, model_.run);
  const PlanResult result = Plan();
  for (const v1::StepPlan& step : result.plan.steps()) {
    for (const v1::Cluster& cluster : step.clusters()) {
      PrefixShape prefix = {.block_rows = cluster.prefix_block_rows(),
                            .policy = cluster.prefix_policy(),
                            .offload = cluster.offload_prefix(),
                            .regather = cluster.regather_prefix()};
      for (const uint32_t g : cluster.prefix_groups()) {
        prefix.lengths.push_back(request_.groups[g].prompt_tokens - 1);
        prefix.rows += prefix.lengths.back();
      }
      for (const v1::Wave& wave : cluster.waves()) {
        WaveShape rows = {.policy = cluster.suffix_policy()};
        for (const v1::WaveMember& member : wave.members()) {
          const MemberShape m = ShapeOf(cluster, member);
          if (wave.cut_rows()) {
            rows.rows = m.rows / cp();  // a rank may have two more
            rows.cut_rows = m.rows;
            rows.cut_prefix_rows = m.prefix_rows;
            continue;
          }
          rows.rows += m.rows + (m.dense ? m.prefix_rows : 0);
          rows.kv_only_rows += m.dense ? m.prefix_rows : 0;
        }
        rows.runs.push_back({.rows = 1, .longest_rows = 1});  // attention's scratch is not what is asked here
        PhaseBytes bytes = SuffixBytes(shape, prefix, rows);
        if (cluster.has_owner_rank()) bytes.dormant_set = 0;
        EXPECT_LE(bytes.peak(), budget);
      }
    }
  }
  for (const v1::StepReport& report : result.report.steps()) {
    EXPECT_LE(report.peak_bytes(), static_cast<uint64_t>(budget));
  }
}

TEST_P(ContextPlansTest, SplitGroupsAreHeldWhateverIsForced) {
  model_.run.set_split_groups(v1::SPLIT_ON);
  for (const v1::PrefixKv kv : {v1::PREFIX_KV_AUTO, v1::PREFIX_KV_REGATHER}) {
    model_.run.set_prefix_kv(kv);
    const PlanResult result = Plan();
    const int passes = request_.log_prob_passes > 0 ? 1 : 0;
    for (int i = 0; i < result.plan.steps_size(); ++i) {
      ExpectSplitsHold(result.plan.steps(i), request_);
      const v1::StepReport& report = result.report.steps(passes + i);
      for (int c = 0; c < result.plan.steps(i).clusters_size(); ++c) {
        const v1::Cluster& cluster = result.plan.steps(i).clusters(c);
        const bool split = cluster.has_owner_rank() || cluster.helper_ranks_size() > 0;
        if (split) {
          EXPECT_FALSE(cluster.regather_prefix());
        } else if (kv == v1::PREFIX_KV_REGATHER && cluster.prefix_groups_size() > 0) {
          EXPECT_TRUE(cluster.regather_prefix());
        }
        const std::string& reason = report.clusters(c).reason();
        if (cluster.prefix_groups().empty()) {
          EXPECT_THAT(reason, Not(HasSubstr("K/V")));
        } else {
          EXPECT_THAT(reason, HasSubstr(cluster.regather_prefix() ? "K/V gathered again" : "K/V held"));
        }
      }
    }
  }
}

TEST_P(ContextPlansTest, TheSamePlanAgain) {
  const PlanResult one = Plan(), two = Plan();
  EXPECT_EQ(one.plan.SerializeAsString(), two.plan.SerializeAsString());
  EXPECT_EQ(one.report.SerializeAsString(), two.report.SerializeAsString());
}

TEST_P(ContextPlansTest, OneContextParallelRankHasThePlanOfARunWithout) {
  model_.run.mutable_mesh()->set_cp(1);
  SetBudget();
  const PlanResult one = Plan();
  model_.run.mutable_mesh()->clear_cp();
  for (const v1::PrefixKv kv : {v1::PREFIX_KV_UNSPECIFIED, v1::PREFIX_KV_HOLD, v1::PREFIX_KV_REGATHER}) {
    model_.run.set_prefix_kv(kv);
    const PlanResult none = Plan();
    EXPECT_EQ(one.plan.SerializeAsString(), none.plan.SerializeAsString());
    EXPECT_EQ(one.report.SerializeAsString(), none.report.SerializeAsString());
  }
  for (const v1::StepPlan& step : Steps(one)) {
    for (const v1::Cluster& cluster : step.clusters()) EXPECT_FALSE(cluster.regather_prefix());
  }
  for (const v1::StepReport& report : one.report.steps()) {
    for (const v1::ClusterReport& cluster : report.clusters()) EXPECT_THAT(cluster.reason(), Not(HasSubstr("K/V")));
  }
}

INSTANTIATE_TEST_SUITE_P(Drawn, ContextPlansTest, ::testing::Range(0U, 30U));

}  // namespace
}  // namespace stemma::testing
