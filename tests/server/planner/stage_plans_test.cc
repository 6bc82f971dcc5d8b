// Plans for pipeline stages: which orders a step has, and what it is promised to take. Requests and meshes are drawn;
// STEMMA_SEED draws others.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/mesh.h"
#include "common/cost/context_rows.h"
#include "common/cost/rank_shape.h"
#include "common/cost/regather_bytes.h"
#include "common/cost/state_bytes.h"
#include "server/planner/group_split.h"
#include "server/planner/memory_division.h"
#include "server/planner/planner.h"
#include "server/planner/wave_cuts.h"
#include "tests/server/planner/cluster_shapes.h"
#include "tests/server/planner/drawn_stages.h"
#include "tests/server/planner/split_plans.h"
#include "tests/testing/draw.h"
#include "tests/testing/namespaces.h"

namespace stemma::testing {
namespace {

class StagePlansTest : public ::testing::TestWithParam<uint32_t> {
 protected:
  StagePlansTest() : draw_(FirstSeed() + GetParam()) {
    model_.config = BenchModel();
    model_.config.max_positions = 4096;
    model_.run.set_dtype(draw_.Between(0, 1) == 0 ? "fp32" : "bf16");
    model_.run.set_head_chunk_tokens(512);
    *model_.run.mutable_mesh() = MakeMesh({.dp = static_cast<uint32_t>(draw_.Between(1, 3)),
                                           .pp = static_cast<uint32_t>(draw_.Between(2, 4)),
                                           .cp = static_cast<uint32_t>(draw_.Between(1, 2)),
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

  // Returns a copy's clusters as stages run them, of one second and one byte each.
  StageQuestion Operations(const v1::StepPlan& step, uint32_t dp_rank) const {
    const size_t stages = PpSize(model_.run.mesh());
    const StageCosts one(stages, {.forward_s = 1, .backward_s = 1});
    StageQuestion question = {.stages = stages, .clusters = {}};
    for (const v1::Cluster& cluster : step.clusters()) {
      if (cluster.dp_rank() != dp_rank) continue;
      std::map<uint32_t, size_t> waves;  // of each context-parallel rank, those that are cut by rows apart
      size_t rounds = 0, cut = 0;
      for (const v1::Wave& wave : cluster.waves()) {
        if (wave.cut_rows()) ++cut;
        rounds = std::max(rounds, wave.cut_rows() ? cut : cut + ++waves[wave.cp_rank()]);
      }
      StageCluster& stage_cluster = question.clusters.emplace_back();
      if (!cluster.prefix_groups().empty()) stage_cluster.prefixes = one;
      stage_cluster.rounds.assign(rounds, one);
    }
    return question;
  }

  // Returns the same with the bytes that each operation takes, from the plan alone.
  StageQuestion OperationBytes(const v1::StepPlan& step, uint32_t dp_rank) const {
    StageQuestion question = Operations(step, dp_rank);
    const std::vector<ByteShape> stages = StageShapes(model_.config, model_.run);
    size_t c = 0;
    for (const v1::Cluster& cluster : step.clusters()) {
      if (cluster.dp_rank() != dp_rank) continue;
      const PrefixShape prefix = PrefixOf(cluster);
      StageCluster& operations = question.clusters[c++];
      std::map<uint32_t, size_t> rounds;
      for (size_t s = 0; s < stages.size(); ++s) {
        if (cluster.has_owner_rank()) {
          StageCost& cost = operations.prefixes[s];  // K/V of the owner's and their gradients, without a tape
          cost.forward_bytes = cost.kept_bytes = cost.backward_bytes = PrefixKeptBytes(stages[s], prefix).hot_set;
        } else if (!operations.prefixes.empty()) {
          StageCost& cost = operations.prefixes[s];
          cost.forward_bytes = PrefixForwardBytes(stages[s], prefix).peak();
          cost.kept_bytes = PrefixKeptBytes(stages[s], prefix).peak();
          cost.output_bytes = s + 1 < stages.size() ? MessageBytes(PrefixMessageRows(stages[s], prefix)) : 0;
          cost.backward_bytes = PrefixBackwardBytes(stages[s], prefix).peak();
          SetMessages(s, PrefixMessageRows(stages[s], prefix), cost);
        }
        rounds.clear();
        size_t cut = 0;
        for (const v1::Wave& wave : cluster.waves()) {
          const size_t round = wave.cut_rows() ? cut++ : cut + rounds[wave.cp_rank()]++;
          StageCost& cost = operations.rounds[round][s];
          const WaveShape shape = WaveOf(cluster, wave);
          const BesideLayer beside = RegatherBytes(stages[s], prefix);
          cost.forward_bytes = std::max(cost.forward_bytes, WaveBytesInForward(stages[s], shape, beside).peak());
          cost.backward_bytes = std::max(cost.backward_bytes, WaveBytesInBackward(stages[s], shape, beside).peak());
          cost.kept_bytes = std::max(cost.kept_bytes, WaveKeptBytes(stages[s], shape));
          SetMessages(s, {shape.rows}, cost);
        }
      }
    }
    return question;
  }

  // All stages but the first hand gradients to the one before. `rows`: of each message.
  void SetMessages(size_t stage, const std::vector<int64_t>& rows, StageCost& cost) const {
    if (stage == 0) return;
    cost.messages = std::max(cost.messages, static_cast<int64_t>(rows.size()));
    cost.message_bytes = std::max(cost.message_bytes, MessageBytes({*std::max_element(rows.begin(), rows.end())}));
  }

  // `rows`: of each message.
  int64_t MessageBytes(const std::vector<int64_t>& rows) const {
    const int64_t tp = TpSize(model_.run.mesh());
    int64_t own = 0;
    for (const int64_t of_one : rows) own += (of_one + tp - 1) / tp;
    return own * model_.config.hidden_size * (model_.run.dtype() == "bf16" ? 2 : 4);
  }

  // The rows of each block that the rank hands on that has most of them.
  static std::vector<int64_t> PrefixMessageRows(const ByteShape& shape, const PrefixShape& prefix) {
    std::vector<int64_t> rows;
    const int64_t block = prefix.block_rows > 0 ? prefix.block_rows : prefix.rows;
    const std::vector<ContextPiece> pieces = DealContextRows(prefix.lengths, prefix.block_rows, shape.cp);
    for (int64_t begin = 0; begin < prefix.rows; begin += block) {
      rows.push_back(LargestContextPart(pieces, begin, std::min(begin + block, prefix.rows), shape.cp));
    }
    return rows;
  }

  PrefixShape PrefixOf(const v1::Cluster& cluster) const {
    PrefixShape prefix = {.block_rows = cluster.prefix_block_rows(),
                          .policy = cluster.prefix_policy(),
                          .offload = cluster.offload_prefix(),
                          .regather = cluster.regather_prefix()};
    for (const uint32_t g : cluster.prefix_groups()) {
      prefix.lengths.push_back(request_.groups[g].prompt_tokens - 1);
      prefix.rows += prefix.lengths.back();
    }
    return prefix;
  }

  WaveShape WaveOf(const v1::Cluster& cluster, const v1::Wave& wave) const {
    std::vector<server::MemberShape> members;
    for (const v1::WaveMember& member : wave.members()) {
      const auto& shared = cluster.prefix_groups();
      const PlannerGroup& group = request_.groups[member.group()];
      const auto at = std::find(shared.begin(), shared.end(), member.group());
      members.push_back({.rows = group.rollouts[member.rollout()].response_tokens,
                         .prefix_rows = group.prompt_tokens - 1,
                         .dense = at == shared.end(),
                         .cut_ranks = wave.cut_rows() ? static_cast<int32_t>(CpSize(model_.run.mesh())) : 1,
                         .prefix = at == shared.end() ? 0 : at - shared.begin()});
    }
    return server::WaveOf(members, wave.layout(), cluster.suffix_policy());
  }

  // Holds the plan's bytes against a replay of its orders: of the step, and of each copy's stages.
  void ExpectPeaks(const PlanResult& result) const {
    const int64_t budget = ActivationBytes(model_.config, model_.run);
    const int passes = request_.log_prob_passes > 0 ? 1 : 0;
    for (int i = 0; i < result.plan.steps_size(); ++i) {
      SCOPED_TRACE(absl::StrCat("STEMMA_SEED ", FirstSeed() + GetParam(), ", step ", i));
      const v1::StepReport& report = result.report.steps(passes + i);
      int64_t peak = 0;
      for (const v1::CopyStages& copy : result.plan.steps(i).copies()) {
        const StageQuestion question = OperationBytes(result.plan.steps(i), copy.dp_rank());
        const Replayed replayed = Replay(question).Run({copy.orders().begin(), copy.orders().end()});
        for (size_t s = 0; s < replayed.peak_bytes.size(); ++s) {
          EXPECT_EQ(static_cast<int64_t>(
                        report.ranks(static_cast<int>(copy.dp_rank())).stages(static_cast<int>(s)).peak_bytes()),
                    replayed.peak_bytes[s])
              << "copy " << copy.dp_rank() << ", stage " << s;
          peak = std::max(peak, replayed.peak_bytes[s]);
        }
      }
      EXPECT_EQ(report.peak_bytes(), peak > 0 ? static_cast<uint64_t>(peak) : 0);
      EXPECT_LE(peak, budget);
    }
  }

  Draw draw_;
  int64_t left_bytes_ = 0;  // to activations
  PlannerModel model_;
  PlannerRequest request_;
};

TEST_P(StagePlansTest, EveryCopyWithClustersHasLegalOrdersOfItsOperations) {
  const PlanResult result = Plan();
  for (const v1::StepPlan& step : result.plan.steps()) {
    std::map<uint32_t, const v1::CopyStages*> copies;
    for (const v1::CopyStages& copy : step.copies()) EXPECT_TRUE(copies.emplace(copy.dp_rank(), &copy).second);
    for (uint32_t dp = 0; dp < DpSize(model_.run.mesh()); ++dp) {
      SCOPED_TRACE(absl::StrCat("STEMMA_SEED ", FirstSeed() + GetParam(), ", copy ", dp));
      const StageQuestion question = Operations(step, dp);
      ASSERT_EQ(copies.contains(dp), !question.clusters.empty());
      if (question.clusters.empty()) continue;
      const auto& orders = copies[dp]->orders();
      EXPECT_EQ(Replay(question).Run({orders.begin(), orders.end()}).problem, "");
    }
  }
}

TEST_P(StagePlansTest, PeaksAreThoseOfTheOrdersAndFitTheBudget) { ExpectPeaks(Plan()); }

// The longest of the copies' pipelines is the step's, and each stage works or idles all the while.
TEST_P(StagePlansTest, SecondsAreThoseOfTheOrders) {
  const PlanResult result = Plan();
  const int passes = request_.log_prob_passes > 0 ? 1 : 0;
  double all_s = 0;
  for (int i = 0; i < result.report.steps_size(); ++i) {
    const v1::StepReport& report = result.report.steps(i);
    ASSERT_EQ(report.ranks_size(), static_cast<int>(DpSize(model_.run.mesh())));
    double longest_s = 0;
    for (const v1::RankReport& rank : report.ranks()) {
      longest_s = std::max(longest_s, rank.pipeline_s());
      if (rank.stages().empty()) continue;
      ASSERT_EQ(rank.stages_size(), static_cast<int>(PpSize(model_.run.mesh())));
      double busiest_s = 0;
      int64_t layers = 0;
      for (const v1::StageReport& stage : rank.stages()) {
        EXPECT_DOUBLE_EQ(stage.seconds() + stage.idle_s(), rank.pipeline_s());
        EXPECT_LE(stage.peak_bytes(), rank.peak_bytes());
        busiest_s = std::max(busiest_s, stage.seconds());
        layers += stage.layers();
      }
      EXPECT_EQ(layers, model_.config.num_layers);
      EXPECT_NEAR(rank.bubble_s(), rank.pipeline_s() - busiest_s, 1e-9 * busiest_s);
      // One after the other they would take as long as the phases of a whole model, and what travels.
      const v1::PhaseSeconds& s = rank.seconds();
      EXPECT_LT(busiest_s, s.prefix_forward() + s.suffix() + s.prefix_backward());
    }
    // A copy that shares a group also waits for others.
    if (report.split_groups().empty()) {
      EXPECT_EQ(report.pipeline_s(), longest_s);
    } else {
      EXPECT_GT(report.pipeline_s(), longest_s * (1 - 1e-9));
    }
    all_s += report.pipeline_s() * (i < passes ? request_.log_prob_passes : static_cast<int>(result.repeats));
    if (i < passes) continue;
    for (const v1::CopyStages& copy : result.plan.steps(i - passes).copies()) {
      EXPECT_GT(report.ranks(static_cast<int>(copy.dp_rank())).pipeline_s(), 0);
    }
  }
  EXPECT_NEAR(result.report.pipeline_s(), all_s, 1e-9 * all_s);
}

// Ways are chosen with room for what is in flight, which only orders know.
TEST_P(StagePlansTest, TheLeastBudgetThatAPlanFitsHoldsItsPeaks) {
  request_.log_prob_passes = 0;
  int64_t low = 0, high = left_bytes_;
  while (high - low > 1 << 16) {
    left_bytes_ = low + (high - low) / 2;
    SetBudget();
    (MakePlan(model_, request_).ok() ? high : low) = left_bytes_;
  }
  left_bytes_ = high;
  SetBudget();
  ExpectPeaks(Plan());
}

TEST_P(StagePlansTest, APassWithoutBackwardHasNoOrders) {
  EXPECT_EQ(Plan().plan.log_prob_pass().copies_size(), 0);
  request_.forward_only = true;
  request_.log_prob_passes = 0;
  const PlanResult result = Plan();
  for (const v1::StepPlan& step : result.plan.steps()) EXPECT_EQ(step.copies_size(), 0);
}

TEST_P(StagePlansTest, GroupsThatCopiesShareStandAlone) {
  model_.run.set_split_groups(v1::SPLIT_ON);
  const PlanResult result = Plan();
  ExpectPeaks(result);
  const int passes = request_.log_prob_passes > 0 ? 1 : 0;
  for (int i = 0; i < result.plan.steps_size(); ++i) {
    const v1::StepPlan& step = result.plan.steps(i);
    SCOPED_TRACE(absl::StrCat("STEMMA_SEED ", FirstSeed() + GetParam(), ", step ", i));
    ExpectSplitsHold(step, request_);
    ExpectReportHolds(step, result.report.steps(passes + i), request_);
    for (const v1::CopyStages& copy : step.copies()) {
      const StageQuestion question = Operations(step, copy.dp_rank());
      std::vector<size_t> shared;
      size_t at = 0;
      for (const v1::Cluster& cluster : step.clusters()) {
        if (cluster.dp_rank() != copy.dp_rank()) continue;
        if (cluster.has_owner_rank() || cluster.helper_ranks_size() > 0) shared.push_back(at);
        ++at;
      }
      for (const std::string& order : copy.orders()) {
        for (const size_t c : shared) EXPECT_TRUE(StandsAlone(ClustersOf(question, order), c)) << order;
      }
    }
  }
}

// Filling and draining the stages for a shared group counts, too.
TEST_P(StagePlansTest, AGroupIsSharedWhereTheStepEndsSoonerAndElseNot) {
  request_.log_prob_passes = 0;
  model_.run.set_split_groups(v1::SPLIT_AUTO);
  const PlanResult split = Plan();
  model_.run.set_split_groups(v1::SPLIT_OFF);
  const PlanResult whole = Plan();
  for (int i = 0; i < split.report.steps_size(); ++i) {
    const v1::StepReport &a = split.report.steps(i), &b = whole.report.steps(i);
    SCOPED_TRACE(absl::StrCat("STEMMA_SEED ", FirstSeed() + GetParam(), ", step ", i));
    if (a.split_groups().empty()) {
      EXPECT_EQ(a.pipeline_s(), b.pipeline_s());
    } else {
      EXPECT_LT(a.pipeline_s(), (1 - server::kWorthSplitting) * b.pipeline_s());
    }
  }
}

TEST_P(StagePlansTest, TheSamePlanAgain) {
  const PlanResult one = Plan(), two = Plan();
  EXPECT_EQ(one.plan.SerializeAsString(), two.plan.SerializeAsString());
  EXPECT_EQ(one.report.SerializeAsString(), two.report.SerializeAsString());
}

TEST_P(StagePlansTest, OneStageHasThePlanOfARunWithout) {
  model_.run.mutable_mesh()->set_pp(1);
  SetBudget();
  const PlanResult one = Plan();
  model_.run.mutable_mesh()->clear_pp();
  const PlanResult none = Plan();
  EXPECT_EQ(one.plan.SerializeAsString(), none.plan.SerializeAsString());
  EXPECT_EQ(one.report.SerializeAsString(), none.report.SerializeAsString());
  for (const v1::StepPlan& step : one.plan.steps()) EXPECT_EQ(step.copies_size(), 0);
  EXPECT_EQ(one.report.pipeline_s(), 0);
}

INSTANTIATE_TEST_SUITE_P(Drawn, StagePlansTest, ::testing::Range(0U, 30U));

}  // namespace
}  // namespace stemma::testing
