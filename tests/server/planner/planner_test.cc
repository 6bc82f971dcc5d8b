#include "server/planner/planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/admission/mini_batches.h"
#include "common/base/error.h"
#include "common/cost/state_bytes.h"
#include "common/cost/wave_bytes.h"
#include "server/planner/memory_division.h"
#include "tests/testing/draw.h"

namespace stemma::server {
namespace {

using ::testing::HasSubstr;

PlannerModel Model() {
  PlannerModel model;
  model.config.vocab_size = 4096;
  model.config.hidden_size = 512;
  model.config.num_layers = 8;
  model.config.num_heads = 8;
  model.config.num_kv_heads = 4;
  model.config.head_size = 64;
  model.config.ffn_size = 1408;
  model.run.set_dtype("fp32");
  model.run.set_memory_budget_bytes(uint64_t{8} << 30);
  model.run.set_head_chunk_tokens(512);
  return model;
}

void LeaveForActivations(int64_t bytes, PlannerModel& model) {
  const int64_t state = StateBytesOf(model.config, RunDtypeOf(model.run.dtype())).device(v1::DEVICE);
  model.run.set_memory_budget_bytes(static_cast<uint64_t>(state + bytes));
}

PlannerGroup Group(const std::string& uid, int64_t prompt, std::vector<int64_t> responses) {
  PlannerGroup group;
  group.uid = uid;
  group.prompt_tokens = prompt;
  for (const int64_t rows : responses) group.rollouts.push_back({rows});
  return group;
}

// "c[A:0 | 0.0 0.1 | 1.0]": a cluster with the prefix of group 0 and two waves.
std::string Text(const v1::StepPlan& step) {
  std::string text;
  for (const v1::Cluster& cluster : step.clusters()) {
    absl::StrAppend(&text, "c[A:", absl::StrJoin(cluster.prefix_groups(), ","));
    for (const v1::Wave& wave : cluster.waves()) {
      absl::StrAppend(&text, " |");
      for (const v1::WaveMember& m : wave.members()) absl::StrAppend(&text, " ", m.group(), ".", m.rollout());
    }
    absl::StrAppend(&text, "]");
  }
  return text;
}

std::string PlanText(const PlannerModel& model, const PlannerRequest& request) {
  const auto plan = MakePlan(model, request);
  if (!plan.ok()) return std::string(plan.status().message());
  std::string text;
  for (const v1::StepPlan& step : plan->plan.steps()) absl::StrAppend(&text, text.empty() ? "" : " ; ", Text(step));
  return text;
}

TEST(PlannerTest, AutoReusesAPrefixThatIsSharedAndLong) {
  PlannerRequest request;
  request.groups = {Group("a", 1024, {256, 256, 256})};
  EXPECT_EQ(PlanText(Model(), request), "c[A:0 | 0.0 0.1 0.2]");
  const auto plan = MakePlan(Model(), request);
  EXPECT_EQ(plan->report.tokens_computed(), 1023u + 3 * 256);
  EXPECT_EQ(plan->report.tokens_logical(), 3u * (1023 + 256));
  EXPECT_LT(plan->report.flops(), plan->report.flops_dense());
}

TEST(PlannerTest, AutoDeclinesReuseWhereItCannotPay) {
  PlannerRequest one;
  one.groups = {Group("a", 1024, {256})};
  EXPECT_EQ(PlanText(Model(), one), "c[A: | 0.0]");
  PlannerRequest no_prefix;
  no_prefix.groups = {Group("a", 1, {8, 8})};
  EXPECT_EQ(PlanText(Model(), no_prefix), "c[A: | 0.0 0.1]");
  PlannerRequest short_prefix;
  short_prefix.groups = {Group("a", 8, {512, 512, 512})};
  EXPECT_EQ(PlanText(Model(), short_prefix), "c[A: | 0.0 0.1 0.2]");
  const auto plan = MakePlan(Model(), short_prefix);
  EXPECT_THAT(plan->report.steps(0).clusters(0).reason(), HasSubstr("dense: reuse would take"));
  EXPECT_EQ(plan->report.flops(), plan->report.flops_dense());
}

TEST(PlannerTest, ARolloutThatIsNotRunDoesNotCountAsSharing) {
  PlannerRequest request;
  request.groups = {Group("a", 1024, {256, 256})};
  request.groups[0].rollouts[0].run = false;
  EXPECT_EQ(PlanText(Model(), request), "c[A: | 0.1]");
  request.groups[0].rollouts[1].run = false;
  EXPECT_EQ(PlanText(Model(), request), "");
}

TEST(PlannerTest, SchedulesCanBeForced) {
  PlannerRequest request;
  request.groups = {Group("a", 64, {32, 32}), Group("b", 1, {32})};
  request.schedule = v1::DENSE;
  EXPECT_EQ(PlanText(Model(), request), "c[A: | 0.0 0.1 1.0]");
  request.schedule = v1::REUSE;
  EXPECT_EQ(PlanText(Model(), request), "c[A:0 | 0.0 0.1 1.0]");
}

TEST(PlannerTest, AWaveSizeAndALayoutCanBeForced) {
  PlannerModel model = Model();
  PlannerRequest request;
  request.groups = {Group("a", 64, {32, 32, 32}), Group("b", 64, {32, 32})};
  model.run.set_wave_suffixes(2);
  EXPECT_EQ(PlanText(model, request), "c[A:0,1 | 0.0 0.1 | 0.2 1.0 | 1.1]");
  model.run.set_layout(v1::ONE_BY_ONE);
  EXPECT_EQ(PlanText(model, request), "c[A:0,1 | 0.0 | 0.1 | 0.2 | 1.0 | 1.1]");
}

TEST(PlannerTest, TheBudgetDecidesHowManySuffixesAWaveTakes) {
  PlannerModel model = Model();
  model.run.set_prefix_policy(v1::S0);
  model.run.set_suffix_policy(v1::S0);
  model.run.set_prefix_block_rows(512);
  model.run.set_offload(v1::OFFLOAD_OFF);
  PlannerRequest request;
  request.groups = {Group("a", 513, {256, 256, 256, 256})};
  request.schedule = v1::REUSE;
  ByteShape shape;
  shape.config = model.config;
  const int64_t two = SuffixBytes(shape, {.rows = 512}, {.rows = 512, .runs = {{512, 256, 512, 0}}}).peak();
  LeaveForActivations(two, model);
  EXPECT_EQ(PlanText(model, request), "c[A:0 | 0.0 0.1 | 0.2 0.3]");
  EXPECT_EQ(MakePlan(model, request)->report.peak_bytes(), static_cast<uint64_t>(two));
  LeaveForActivations(two - 1, model);
  EXPECT_EQ(PlanText(model, request), "c[A:0 | 0.0 | 0.1 | 0.2 | 0.3]");
}

TEST(PlannerTest, PoliciesStandInTheClusterAndInItsReport) {
  PlannerModel model = Model();
  PlannerRequest request;
  request.groups = {Group("a", 1024, {256, 256, 256, 256})};
  const auto ample = MakePlan(model, request);
  EXPECT_EQ(ample->plan.steps(0).clusters(0).prefix_policy(), v1::S0);
  EXPECT_EQ(ample->plan.steps(0).clusters(0).suffix_policy(), v1::S0);
  EXPECT_FALSE(ample->plan.steps(0).clusters(0).offload_prefix());
  LeaveForActivations(static_cast<int64_t>(ample->report.peak_bytes() / 2), model);
  const auto tight = MakePlan(model, request);
  ASSERT_TRUE(tight.ok()) << tight.status();
  const v1::Cluster& cluster = tight->plan.steps(0).clusters(0);
  const v1::ClusterReport& report = tight->report.steps(0).clusters(0);
  EXPECT_TRUE(cluster.prefix_policy() != v1::S0 || cluster.offload_prefix() || cluster.suffix_policy() != v1::S0 ||
              cluster.waves_size() > 1);
  EXPECT_EQ(report.prefix_policy(), cluster.prefix_policy());
  EXPECT_EQ(report.suffix_policy(), cluster.suffix_policy());
  EXPECT_EQ(report.offload_prefix(), cluster.offload_prefix());
  EXPECT_THAT(report.memory_reason(), HasSubstr("prefix S0, suffixes S0 in 1 waves needs"));
  EXPECT_LE(std::max({report.prefix_forward().peak(), report.suffix().peak(), report.prefix_backward().peak()}),
            model.run.memory_budget_bytes() - tight->report.state().device());
  EXPECT_GE(tight->report.seconds().suffix() + tight->report.seconds().prefix_backward(),
            ample->report.seconds().suffix() + ample->report.seconds().prefix_backward());
  EXPECT_EQ(tight->work.size(), 1u);
  EXPECT_EQ(report.groups(0).uid(), "a");
  EXPECT_GT(report.groups(0).speedup(), 1);
}

TEST(PlannerTest, AForcedPolicyThatDoesNotFitIsNamedWithItsBytes) {
  PlannerModel model = Model();
  PlannerRequest request;
  request.groups = {Group("a", 1024, {256, 256, 256, 256})};
  request.schedule = v1::REUSE;
  LeaveForActivations(static_cast<int64_t>(MakePlan(model, request)->report.peak_bytes() / 2), model);
  ASSERT_TRUE(MakePlan(model, request).ok());
  model.run.set_prefix_policy(v1::S0);
  model.run.set_suffix_policy(v1::S0);
  model.run.set_offload(v1::OFFLOAD_OFF);
  const auto plan = MakePlan(model, request);
  ASSERT_FALSE(plan.ok());
  EXPECT_EQ(ErrorReason(plan.status()), "GROUP_TOO_LARGE");
  EXPECT_THAT(std::string(plan.status().message()),
              HasSubstr("the run configuration forces prefix_policy s0, suffix_policy s0, offload off"));
  EXPECT_THAT(std::string(plan.status().message()),
              HasSubstr(absl::StrCat("memory_budget_bytes leaves ", ActivationBytes(model.config, model.run))));
}

TEST(PlannerTest, AHostArenaThatIsTooSmallIsNamedWithItsBytes) {
  PlannerModel model = Model();
  PlannerRequest request;
  request.groups = {Group("a", 1024, {256, 256})};
  request.schedule = v1::REUSE;
  model.run.set_offload(v1::OFFLOAD_ON);
  model.run.set_host_memory_bytes(4096);
  const auto plan = MakePlan(model, request);
  ASSERT_FALSE(plan.ok());
  EXPECT_THAT(std::string(plan.status().message()), HasSubstr("take there, and host_memory_bytes leaves 4096"));
}

TEST(PlannerTest, OneGroupThatIsTooLargeNamesItselfAmongOthersThatFit) {
  PlannerModel model = Model();
  LeaveForActivations(int64_t{64} << 20, model);
  PlannerRequest request;
  request.groups = {Group("small", 64, {16, 16}), Group("huge", 100000, {16, 16}), Group("other", 64, {16, 16})};
  const auto plan = MakePlan(model, request);
  ASSERT_FALSE(plan.ok());
  EXPECT_EQ(GetErrorDetails(plan.status()).uid, "huge");
}

TEST(PlannerTest, AGroupThatDoesNotFitAloneIsRefusedByName) {
  PlannerModel model = Model();
  LeaveForActivations(1 << 20, model);
  PlannerRequest request;
  request.groups = {Group("big", 512, {256, 256})};
  const auto plan = MakePlan(model, request);
  ASSERT_FALSE(plan.ok());
  EXPECT_EQ(plan.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ErrorReason(plan.status()), "GROUP_TOO_LARGE");
  EXPECT_EQ(GetErrorDetails(plan.status()).uid, "big");
  EXPECT_THAT(std::string(plan.status().message()), HasSubstr("1048576"));
}

TEST(PlannerTest, MiniBatchesAndEpochsAreStepsAndTheLastMayBeSmaller) {
  PlannerRequest request;
  request.groups = {Group("a", 64, {8, 8}), Group("b", 64, {8, 8}), Group("c", 64, {8, 8})};
  request.mini_batch_groups = 2;
  request.epochs = 2;
  EXPECT_EQ(PlanText(Model(), request), "c[A:0,1 | 0.0 0.1 1.0 1.1] ; c[A:2 | 2.0 2.1]") << "of one epoch, for both";
  EXPECT_EQ(MakePlan(Model(), request)->repeats, 2u);
  EXPECT_EQ(MakePlan(Model(), request)->report.num_steps(), 4u);
}

TEST(PlannerTest, AShuffleIsAFunctionOfDigestSeedAndEpoch) {
  PlannerRequest request;
  for (int g = 0; g < 8; ++g) request.groups.push_back(Group(absl::StrCat("g", g), 64, {8, 8}));
  request.mini_batch_groups = 8;
  request.epochs = 2;
  request.shuffle = true;
  request.seed = 1;
  request.payload_digest = "d";
  const auto order = [&] {
    const auto plan = MakePlan(Model(), request);
    return absl::StrCat(absl::StrJoin(plan->plan.steps(0).groups(), ""), " ",
                        absl::StrJoin(plan->plan.steps(1).groups(), ""));
  };
  const std::string first = order();
  EXPECT_EQ(order(), first);
  EXPECT_NE(first.substr(0, 8), first.substr(9)) << "each epoch has an order of its own";
  request.seed = 2;
  EXPECT_NE(order(), first);
  request.seed = 1;
  request.payload_digest = "e";
  EXPECT_NE(order(), first);
}

PlannerRequest RandomRequest(std::mt19937_64& random) {
  const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
  PlannerRequest request;
  for (int64_t g = 1 + below(9); g > 0; --g) {
    std::vector<int64_t> responses;
    for (int64_t r = 1 + below(6); r > 0; --r) responses.push_back(1 + below(300));
    request.groups.push_back(Group(absl::StrCat("g", g), 1 + below(900), responses));
    if (below(5) == 0) request.groups.back().rollouts[0].run = false;
  }
  request.mini_batch_groups = below(4);
  request.epochs = 1 + below(4);
  request.shuffle = below(2) == 0;
  request.seed = random();
  request.payload_digest = "d";
  request.log_prob_passes = below(3) == 0 ? 1 + below(2) : 0;
  return request;
}

// What a plan of all epochs, each step listed, sums up to; added in the order of the steps, so to the last bit.
void AddUp(const PlanResult& plan, double& flops, double& suffix_s, uint64_t& waves) {
  const int first_step = plan.report.steps_size() - plan.plan.steps_size();
  for (uint32_t pass = 0; pass < plan.report.log_prob_passes(); ++pass) {
    flops += plan.report.steps(0).flops();
    suffix_s += plan.report.steps(0).seconds().suffix();
    waves += plan.report.steps(0).num_waves();
  }
  for (uint32_t repeat = 0; repeat < plan.repeats; ++repeat) {
    for (int i = first_step; i < plan.report.steps_size(); ++i) {
      flops += plan.report.steps(i).flops();
      suffix_s += plan.report.steps(i).seconds().suffix();
      waves += plan.report.steps(i).num_waves();
    }
  }
}

// For every request: without shuffle the steps held are those of a request of one epoch, and stand for each epoch; with
// shuffle all are held. Totals are those of all epochs.
TEST(PlannerTest, EqualEpochsAreHeldOnceAndCountedEach) {
  const uint64_t seed = testing::FirstSeed();
  std::mt19937_64 random(seed);
  for (int i = 0; i < 200; ++i) {
    SCOPED_TRACE(absl::StrCat("seed ", seed, " request ", i));
    const PlannerRequest request = RandomRequest(random);
    const auto plan = MakePlan(Model(), request);
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_EQ(plan->repeats, request.shuffle ? 1u : static_cast<uint32_t>(request.epochs));
    EXPECT_EQ(plan->work.size(), static_cast<size_t>(plan->plan.steps_size()));
    EXPECT_EQ(plan->report.num_steps(), plan->repeats * static_cast<uint32_t>(plan->plan.steps_size()));
    double flops = 0, suffix_s = 0;
    uint64_t waves = 0;
    AddUp(*plan, flops, suffix_s, waves);
    EXPECT_EQ(plan->report.flops(), flops);
    EXPECT_EQ(plan->report.seconds().suffix(), suffix_s);
    EXPECT_EQ(plan->report.num_waves(), waves);
    if (request.shuffle) continue;
    PlannerRequest one = request;
    one.epochs = 1;
    EXPECT_EQ(plan->plan.SerializeAsString(), MakePlan(Model(), one)->plan.SerializeAsString());
  }
}

TEST(PlannerTest, APlanDoesNotGrowWithItsEpochs) {
  PlannerRequest request;
  for (int g = 0; g < 100; ++g) request.groups.push_back(Group(absl::StrCat("g", g), 32, {8, 8}));
  const size_t bytes = MakePlan(Model(), request)->report.ByteSizeLong();
  request.epochs = 2048;
  const auto plan = MakePlan(Model(), request);
  EXPECT_LT(plan->report.ByteSizeLong(), bytes + 100);
  EXPECT_EQ(plan->plan.steps_size(), 1);
}

// Under a budget that cuts clusters into halves, so that many are looked at.
TEST(PlannerTest, APlanThatNobodyWaitsForEndsWithinOneCluster) {
  PlannerModel model = Model();
  LeaveForActivations(int64_t{40} << 20, model);
  PlannerRequest request;
  for (int g = 0; g < 40; ++g) request.groups.push_back(Group(absl::StrCat("g", g), 300 + g, {200, 200}));
  int asked = 0;
  const auto all = MakePlan(model, request, [&] { return ++asked < 0; });
  const int asked_of_all = asked;
  ASSERT_TRUE(all.ok()) << all.status();
  ASSERT_GT(asked_of_all, 2 * 40) << "there must be clusters to cut for this test to mean something";
  for (const int stop_at : {1, 2, 50, asked_of_all / 2, asked_of_all - 1}) {
    asked = 0;
    const auto stopped = MakePlan(model, request, [&] { return ++asked >= stop_at; });
    EXPECT_EQ(stopped.status().code(), absl::StatusCode::kCancelled) << stop_at;
    EXPECT_LT(asked, stop_at + 20) << "it ends soon after it is told to";
  }
}

// Every order comes up, those that leave a group in its place too.
TEST(PlannerTest, AShuffleReachesEveryOrder) {
  std::set<std::vector<std::vector<uint32_t>>> orders;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    orders.insert(MiniBatches(3, {.shuffle = true, .seed = seed, .payload_digest = "d"}, 0));
  }
  EXPECT_EQ(orders.size(), 6u);
}

// Long prefixes are a cluster each; the first one needs the most.
TEST(PlannerTest, AStepsPeakIsItsLargestClusters) {
  PlannerRequest request;
  request.schedule = v1::REUSE;
  request.groups = {Group("a", 3000, {256, 256}), Group("b", 1500, {8, 8}), Group("c", 1500, {8, 8})};
  const auto plan = MakePlan(Model(), request);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const v1::StepReport& step = plan->report.steps(0);
  ASSERT_GE(step.clusters_size(), 2);
  uint64_t largest = 0, last = 0;
  for (const v1::ClusterReport& cluster : step.clusters()) {
    last = std::max({cluster.prefix_forward().peak(), cluster.suffix().peak(), cluster.prefix_backward().peak()});
    largest = std::max(largest, last);
  }
  ASSERT_LT(last, largest);
  EXPECT_EQ(step.peak_bytes(), largest);
}

TEST(PlannerTest, AForwardOnlyPassCountsForwardFlopsAndFewerBytes) {
  PlannerRequest request;
  request.groups = {Group("a", 1024, {256, 256})};
  const auto both = MakePlan(Model(), request);
  request.forward_only = true;
  const auto forward = MakePlan(Model(), request);
  EXPECT_DOUBLE_EQ(forward->report.flops() * 3, both->report.flops());
  EXPECT_LT(forward->report.peak_bytes(), both->report.peak_bytes() / 2);
  EXPECT_GT(forward->report.steps(0).clusters(0).prefix_forward().working_set(), 0u);
}

}  // namespace
}  // namespace stemma::server
