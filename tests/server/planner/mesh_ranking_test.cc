// Which meshes there are, in which order, by which numbers. Models, requests and ranks are drawn; STEMMA_SEED draws
// others. Every answer is held to the rules of meshes and to the planner, asked again for that mesh alone.
#include "server/planner/mesh_ranking.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/mesh.h"
#include "common/cost/state_bytes.h"
#include "common/model/mesh_rules.h"
#include "tests/testing/draw.h"
#include "tests/testing/namespaces.h"
#include "tests/testing/synthetic.h"

namespace stemma::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::vector<std::string> TextsOf(const std::vector<v1::Mesh>& meshes) {
  std::vector<std::string> texts;
  std::transform(meshes.begin(), meshes.end(), std::back_inserter(texts), MeshText);
  return texts;
}

std::set<std::string> AllMeshes(uint32_t ranks) {
  std::set<std::string> texts;
  for (uint32_t dp = 1; dp <= ranks; ++dp) {
    if (ranks % dp != 0) continue;
    for (uint32_t pp = 1; pp <= ranks / dp; ++pp) {
      for (uint32_t cp = 1; cp <= ranks / dp / pp; ++cp) {
        const uint32_t tp = ranks / dp / pp / cp;
        if (dp * pp * cp * tp == ranks) texts.insert(MeshText(MakeMesh({.dp = dp, .pp = pp, .cp = cp, .tp = tp})));
      }
    }
  }
  return texts;
}

TEST(MeshesOfTest, HasEveryMeshOfTheRanksOnceAndThoseOfMostDataParallelRanksFirst) {
  EXPECT_THAT(TextsOf(MeshesOf(1)), ElementsAre("dp=1"));
  EXPECT_THAT(TextsOf(MeshesOf(4)), ElementsAre("dp=4", "dp=2,pp=2", "dp=2,cp=2", "dp=2,tp=2", "pp=4", "pp=2,cp=2",
                                                "pp=2,tp=2", "cp=4", "cp=2,tp=2", "tp=4"));
  for (const uint32_t ranks : {2u, 6u, 7u, 12u, 97u, 360u, 1024u, kRanksMax}) {
    const std::vector<std::string> texts = TextsOf(MeshesOf(ranks));
    EXPECT_EQ(std::set<std::string>(texts.begin(), texts.end()), AllMeshes(ranks)) << ranks;
    EXPECT_EQ(texts.size(), AllMeshes(ranks).size()) << ranks;
  }
}

Rates TestRates(v1::OptimizerResidency residency) { return DefaultRates(RunDtype::kFp32, 1, "cpu", residency); }

MeshQuestion Question(const SyntheticShape& shape, uint32_t ranks) {
  MeshQuestion question;
  question.config = SyntheticModel(shape);
  question.run.set_dtype("fp32");
  question.run.set_head_chunk_tokens(512);
  question.run.set_split_groups(v1::SPLIT_AUTO);
  question.ranks = ranks;
  question.memory = {.device_free_bytes = int64_t{16} << 30, .device_bytes = int64_t{16} << 30};
  question.rates = [](const v1::Mesh&, v1::OptimizerResidency residency) { return TestRates(residency); };
  return question;
}

PlannerRequest RequestOf(const std::vector<int64_t>& prompts, int64_t rollouts, int64_t response) {
  PlannerRequest request;
  for (const int64_t prompt : prompts) {
    PlannerGroup& group = request.groups.emplace_back();
    group.uid = absl::StrCat("g", request.groups.size());
    group.prompt_tokens = prompt;
    for (int64_t i = 0; i < rollouts; ++i) group.rollouts.push_back({response});
  }
  return request;
}

const MeshAnswer& AnswerOf(const std::vector<MeshAnswer>& answers, const std::string& mesh) {
  const auto found = std::find_if(answers.begin(), answers.end(),
                                  [&](const MeshAnswer& answer) { return MeshText(answer.mesh) == mesh; });
  EXPECT_NE(found, answers.end()) << mesh;
  return *found;
}

class DrawnRankingTest : public ::testing::TestWithParam<uint32_t> {
 protected:
  DrawnRankingTest() : draw_(FirstSeed() + GetParam()) {
    const int64_t kv_heads = int64_t{1} << draw_.Between(0, 2), heads = kv_heads * draw_.Between(1, 3);
    question_ = Question({.hidden = 64 * heads,
                          .layers = draw_.Between(1, 4),
                          .heads = heads,
                          .kv_heads = kv_heads,
                          .head_size = 64,
                          .ffn = 96 * draw_.Between(1, 12)},
                         static_cast<uint32_t>(draw_.Between(1, 24)));
    if (draw_.Between(0, 1) == 1) question_.memory.host_free_bytes = int64_t{4} << 30;
    for (int64_t i = draw_.Between(1, 3); i > 0; --i) {
      std::vector<int64_t> prompts;
      for (int64_t g = draw_.Between(1, 6); g > 0; --g) prompts.push_back(draw_.Between(1, 700));
      PlannerRequest request = RequestOf(prompts, draw_.Between(1, 8), draw_.Between(1, 200));
      request.mini_batch_groups = draw_.Between(0, 3);
      request.epochs = draw_.Between(1, 2);
      request.log_prob_passes = static_cast<int>(draw_.Between(0, 1));
      question_.requests.push_back({absl::StrCat("request ", i), std::move(request)});
    }
  }

  Draw draw_;
  MeshQuestion question_;
};

TEST_P(DrawnRankingTest, EveryMeshIsAnsweredOnceAndTheFastestFirst) {
  const std::vector<MeshAnswer> answers = RankMeshes(question_);
  std::set<std::string> texts;
  for (const MeshAnswer& answer : answers) {
    texts.insert(MeshText(answer.mesh));
    EXPECT_EQ(NumRanks(answer.mesh), question_.ranks);
  }
  EXPECT_EQ(texts, AllMeshes(question_.ranks));
  EXPECT_EQ(answers.size(), texts.size());
  for (size_t i = 1; i < answers.size(); ++i) {
    if (!answers[i].possible()) continue;
    EXPECT_TRUE(answers[i - 1].possible());
    EXPECT_LE(answers[i - 1].seconds(), answers[i].seconds());
  }
}

TEST_P(DrawnRankingTest, ThreadsChangeNoAnswer) {
  const std::vector<MeshAnswer> one = RankMeshes(question_), several = RankMeshes(question_, /*threads=*/4);
  ASSERT_EQ(one.size(), several.size());
  for (size_t i = 0; i < one.size(); ++i) {
    EXPECT_EQ(MeshText(one[i].mesh), MeshText(several[i].mesh));
    EXPECT_EQ(one[i].problem, several[i].problem);
    EXPECT_EQ(one[i].seconds(), several[i].seconds());
    EXPECT_EQ(one[i].bytes(), several[i].bytes());
    EXPECT_EQ(one[i].tokens, several[i].tokens);
  }
}

TEST_P(DrawnRankingTest, WhatCannotHoldTheModelHasTheReasonsOfTheMeshRules) {
  for (const MeshAnswer& answer : RankMeshes(question_)) {
    const absl::Status status = CheckMesh(question_.config, answer.mesh);
    EXPECT_EQ(answer.possible(), status.ok()) << answer.problem;
    EXPECT_EQ(answer.problem, status.message());
  }
}

// Without the optimizer, waiting for others included; stages run side by side.
double SecondsOfLastCopy(const v1::StepReport& step) {
  const auto phases_s = [](const v1::PhaseSeconds& s) { return s.prefix_forward() + s.suffix() + s.prefix_backward(); };
  if (step.pipeline_s() > 0) return step.pipeline_s();
  double seconds = step.ranks().empty() ? phases_s(step.seconds()) : 0;
  for (const v1::RankReport& rank : step.ranks())
    seconds = std::max(seconds, phases_s(rank.seconds()) + rank.exchange_s());
  return seconds;
}

TEST_P(DrawnRankingTest, NumbersAreThoseOfThePlansForThatMesh) {
  for (const MeshAnswer& answer : RankMeshes(question_)) {
    if (!answer.possible()) continue;
    v1::RunConfig run = question_.run;
    *run.mutable_mesh() = answer.mesh;
    const auto divided = DivideMemory(question_.config, question_.memory, run);
    ASSERT_TRUE(divided.ok()) << divided.status();
    const PlannerModel model = {question_.config, *divided, TestRates(divided->optimizer_residency())};
    double seconds = 0, tokens = 0, imbalance = 0;
    uint64_t peak = 0, state = 0, steps = 0;
    for (const NamedRequest& named : question_.requests) {
      const auto plan = MakePlan(model, named.request);
      ASSERT_TRUE(plan.ok()) << plan.status();
      const v1::PlanReport& report = plan->report;
      EXPECT_EQ(report.pipeline_s() > 0, PpSize(answer.mesh) > 1);
      for (int k = 0; k < report.steps_size(); ++k) {
        const int passes = named.request.log_prob_passes;
        const bool is_pass = k == 0 && passes > 0;
        const double times = is_pass ? passes : plan->repeats;
        if (!is_pass) tokens += times * static_cast<double>(report.steps(k).tokens_logical());
        seconds += times * (SecondsOfLastCopy(report.steps(k)) + report.steps(k).seconds().apply());
        imbalance = std::max(imbalance, report.steps(k).imbalance());
      }
      steps += static_cast<uint64_t>(plan->plan.steps_size()) * plan->repeats;
      peak = std::max({peak, plan->report.peak_bytes(), plan->report.state().apply()});
      state = plan->report.state().device();
    }
    EXPECT_DOUBLE_EQ(answer.plan_s, seconds);
    EXPECT_DOUBLE_EQ(answer.tokens_per_s(), tokens / answer.seconds());
    EXPECT_EQ(answer.bytes(), state + peak);
    EXPECT_EQ(answer.budget_bytes, divided->memory_budget_bytes());
    EXPECT_EQ(answer.steps, steps);
    EXPECT_EQ(answer.imbalance, imbalance);
    EXPECT_EQ(answer.imbalance > 0, DpSize(answer.mesh) > 1);
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, DrawnRankingTest, ::testing::Range(0u, 12u));

TEST(MeshRankingTest, GradientsAndWeightsCostTimeBetweenRanksThatShareThem) {
  MeshQuestion question = Question({}, 2);
  question.requests = {{"request", RequestOf({64, 64, 64}, 4, 32)}};
  question.requests.front().request.mini_batch_groups = 1;  // three steps
  const std::vector<MeshAnswer> answers = RankMeshes(question);
  const double bytes = static_cast<double>(question.config.num_parameters()) * (4 + 4) / 2;
  EXPECT_DOUBLE_EQ(AnswerOf(answers, "dp=2").exchange_s, 3 * bytes * TestRates(v1::DEVICE)[kDataByte]);
  EXPECT_DOUBLE_EQ(AnswerOf(answers, "dp=2").seconds(),
                   AnswerOf(answers, "dp=2").plan_s + AnswerOf(answers, "dp=2").exchange_s);
  EXPECT_EQ(AnswerOf(answers, "tp=2").exchange_s, 0);
}

TEST(MeshRankingTest, TwoStagesAddUpATiedEmbeddingOnceAStep) {
  MeshQuestion question = Question({}, 2);
  question.requests = {{"request", RequestOf({64, 64, 64}, 4, 32)}};
  question.requests.front().request.mini_batch_groups = 1;  // three steps
  const auto exchange_s = [&](const char* mesh) { return AnswerOf(RankMeshes(question), mesh).exchange_s; };
  question.config.tie_word_embeddings = true;
  const auto bytes = static_cast<double>(question.config.vocab_size * question.config.hidden_size * 4);
  question.rates = [](const v1::Mesh&, v1::OptimizerResidency residency) {
    Rates rates = TestRates(residency);
    rates[kDataByte] = 1;  // stages send it, not the ranks that share gradients
    return rates;
  };
  EXPECT_DOUBLE_EQ(exchange_s("pp=2"), 3 * bytes * TestRates(v1::DEVICE)[kStageByte]);
  question.ranks = 4;
  EXPECT_GT(exchange_s("dp=2,pp=2"), bytes) << "control: the ranks that share parameters exchange them";
  question.run.set_shard_parameters(v1::SHARD_PARAMETERS_ON);
  EXPECT_DOUBLE_EQ(exchange_s("dp=2,pp=2"), 3 * bytes * TestRates(v1::DEVICE)[kStageByte]);
  question.config.tie_word_embeddings = false;
  EXPECT_EQ(exchange_s("dp=2,pp=2"), 0);
}

TEST(MeshRankingTest, ADeviceThatIsTooSmallForTheWholeModelHoldsAPartOfIt) {
  MeshQuestion question = Question({.hidden = 512, .heads = 8, .kv_heads = 4, .head_size = 64, .ffn = 2048}, 2);
  question.requests = {{"request", RequestOf({8}, 2, 4)}};
  v1::RunConfig run = question.run;
  *run.mutable_mesh() = MakeMesh({.dp = 2});
  run.set_optimizer_residency(v1::DEVICE);
  const int64_t whole = StateBytesOf(question.config, run).total();
  question.memory = {.device_free_bytes = whole, .device_bytes = whole};
  const std::vector<MeshAnswer> answers = RankMeshes(question);
  const MeshAnswer &part = AnswerOf(answers, "tp=2"), &all = AnswerOf(answers, "dp=2");
  EXPECT_EQ(MeshText(answers.front().mesh), "tp=2");
  EXPECT_TRUE(part.possible()) << part.problem;
  EXPECT_LE(part.bytes(), static_cast<uint64_t>(whole));
  EXPECT_THAT(all.problem, HasSubstr(absl::StrCat("has ", whole, " bytes free")));
  EXPECT_THAT(all.problem, HasSubstr("the state of this model in fp32 needs"));
  EXPECT_EQ(all.seconds(), 0);
}

// Seven ranks can be neither stages of six layers nor parts of eight heads: every mesh holds the whole model.
TEST(MeshRankingTest, AModelThatFitsNoWholeMeshIsShardedUnlessTheRunSaysNo) {
  MeshQuestion question =
      Question({.hidden = 512, .layers = 6, .heads = 8, .kv_heads = 4, .head_size = 64, .ffn = 2048}, 7);
  question.requests = {{"request", RequestOf({8}, 2, 4)}};
  question.run.set_shard_parameters(v1::SHARD_PARAMETERS_AUTO);
  for (const MeshAnswer& answer : RankMeshes(question)) {
    EXPECT_FALSE(answer.shards_parameters) << "control: there is room for it";
  }
  v1::RunConfig whole = question.run;
  *whole.mutable_mesh() = MakeMesh({.dp = 7});
  const int64_t state = StateBytesOf(question.config, whole).total();
  question.memory = {.device_free_bytes = state, .device_bytes = state};
  for (const MeshAnswer& answer : RankMeshes(question)) {
    const bool shares = DataRanks(answer.mesh) == 7;
    EXPECT_EQ(answer.possible(), shares) << MeshText(answer.mesh) << ": " << answer.problem;
    EXPECT_EQ(answer.shards_parameters, shares);
    EXPECT_EQ(answer.exchange_s, 0) << "plans have it";
    EXPECT_LT(answer.bytes(), static_cast<uint64_t>(state));
  }
  question.run.set_shard_parameters(v1::SHARD_PARAMETERS_OFF);
  for (const MeshAnswer& answer : RankMeshes(question)) EXPECT_FALSE(answer.possible()) << MeshText(answer.mesh);
}

TEST(MeshRankingTest, GatheringShardedParametersIsInThePlansSeconds) {
  MeshQuestion question = Question({}, 2);
  question.requests = {{"request", RequestOf({64, 64, 64}, 4, 32)}};
  question.run.set_shard_parameters(v1::SHARD_PARAMETERS_ON);
  const auto plan_s = [&](double byte_s) {
    question.rates = [=](const v1::Mesh&, v1::OptimizerResidency residency) {
      Rates rates = TestRates(residency);
      rates[kDataByte] = byte_s;
      return rates;
    };
    return AnswerOf(RankMeshes(question), "dp=2").plan_s;
  };
  EXPECT_GT(plan_s(1e-3), 100 * plan_s(0));
}

TEST(MeshRankingTest, BytesOfAStepAreThoseOfApplyWhereThatTakesMost) {
  MeshQuestion question = Question({.hidden = 512, .heads = 8, .kv_heads = 4, .head_size = 64, .ffn = 2048}, 1);
  question.requests = {{"request", RequestOf({2}, 1, 1)}};
  const StateBytes state = StateBytesOf(question.config, question.run);
  const MeshAnswer answer = RankMeshes(question).front();
  ASSERT_TRUE(answer.possible()) << answer.problem;
  EXPECT_EQ(answer.step_bytes, static_cast<uint64_t>(state.apply(v1::DEVICE)));
  EXPECT_EQ(answer.bytes(), static_cast<uint64_t>(state.device_peak(v1::DEVICE)));
}

TEST(MeshRankingTest, AGroupThatFitsNoWayNamesItselfAndItsRequest) {
  MeshQuestion question = Question({}, 1);
  question.requests = {{"the request on line 2", RequestOf({64}, 2, 32)},
                       {"the request on line 3", RequestOf({3000}, 2, 900)}};
  question.run.set_optimizer_residency(v1::DEVICE);
  const int64_t state = StateBytesOf(question.config, question.run).device(v1::DEVICE);
  question.run.set_memory_budget_bytes(static_cast<uint64_t>(state) + (4 << 20));
  const std::vector<MeshAnswer> answers = RankMeshes(question);
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_THAT(answers[0].problem, StartsWith("the request on line 3: "));
  EXPECT_THAT(answers[0].problem, HasSubstr("g1"));
  EXPECT_EQ(answers[0].bytes(), 0u) << "what is impossible has no numbers";
}

TEST(MeshRankingTest, EquallyFastMeshesStayInTheirOrder) {
  std::vector<v1::Mesh> meshes;
  for (const MeshAnswer& answer : RankMeshes(Question({}, 4))) meshes.push_back(answer.mesh);  // nothing to compute
  EXPECT_EQ(TextsOf(meshes), TextsOf(MeshesOf(4)));
}

}  // namespace
}  // namespace stemma::testing
