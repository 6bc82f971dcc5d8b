#include "client/cli/commands/fit.h"

#include <algorithm>
#include <random>
#include <string>

#include "gtest/gtest.h"
#include "server/planner/cluster_ways.h"
#include "server/planner/memory_division.h"
#include "server/planner/planner.h"

namespace stemma::cli {
namespace {

using server::CheckMemory, server::ClusterShape, server::ClusterWays, server::MakePlan, server::MemoryOptions;
using server::MemoryOptionsOf, server::PlannerGroup, server::PlannerRequest, server::Rates;

constexpr uint32_t kSeed = 918273;  // printed with every failure by the case's number

struct Case {
  ModelConfig model;
  std::string dtype;
  GroupLengths lengths;
};

Case RandomCase(std::mt19937& random) {
  const auto pick = [&](std::initializer_list<int64_t> values) { return *(values.begin() + random() % values.size()); };
  Case c;
  c.model = {.model_type = "qwen3",
             .vocab_size = pick({64, 2048, 32000}),
             .hidden_size = pick({64, 256, 1024}),
             .num_layers = pick({1, 2, 12}),
             .num_heads = 4,
             .num_kv_heads = pick({1, 2, 4}),
             .head_size = pick({16, 64}),
             .ffn_size = pick({128, 512, 3072}),
             .max_positions = 8192,
             .tie_word_embeddings = random() % 2 == 0,
             .qk_norm = true};
  c.dtype = random() % 2 == 0 ? "fp32" : "bf16";
  c.lengths = {
      .prompt = pick({1, 2, 100, 700, 4000}), .response = pick({1, 60, 900, 3000}), .rollouts = pick({1, 2, 9})};
  return c;
}

v1::RunConfig RunOf(const Case& c, v1::OptimizerResidency residency, int64_t budget) {
  v1::RunConfig run;
  run.set_dtype(c.dtype);
  run.set_head_chunk_tokens(512);
  run.set_optimizer_residency(residency);
  run.set_memory_budget_bytes(static_cast<uint64_t>(std::max<int64_t>(1, budget)));
  return run;
}

// Whether the server's planner takes the group under `budget` bytes of the device.
bool PlannerTakes(const Case& c, v1::OptimizerResidency residency, int64_t budget) {
  const v1::RunConfig run = RunOf(c, residency, budget);
  if (!CheckMemory(c.model, run).ok()) return false;
  PlannerRequest request;
  PlannerGroup& group = request.groups.emplace_back();
  group.uid = "g";
  group.prompt_tokens = c.lengths.prompt;
  for (int64_t i = 0; i < c.lengths.rollouts; ++i) {
    group.rollouts.push_back({.response_tokens = c.lengths.response, .run = true});
  }
  return MakePlan({.config = c.model, .run = run}, request).ok();
}

TEST(FitTest, WhatFitsIsWhatTheServersPlannerTakesToTheByte) {
  std::mt19937 random(kSeed);
  for (int i = 0; i < 40; ++i) {
    const Case c = RandomCase(random);
    for (const FitAnswer& answer : FitAnswers(c.model, {c.dtype}, c.lengths, /*device_bytes=*/0)) {
      const int64_t enough = answer.state_bytes + std::max(answer.least_bytes, answer.apply_bytes + 1);
      EXPECT_TRUE(PlannerTakes(c, answer.residency, enough)) << "seed " << kSeed << " case " << i;
      EXPECT_FALSE(PlannerTakes(c, answer.residency, enough - 1)) << "seed " << kSeed << " case " << i;
    }
  }
}

TEST(FitTest, EverythingKeptNeedsWhatThePlannersFirstWayNeeds) {
  std::mt19937 random(kSeed + 1);
  for (int i = 0; i < 40; ++i) {
    const Case c = RandomCase(random);
    const FitAnswer answer = FitAnswers(c.model, {c.dtype}, c.lengths, 0).front();
    const MemoryOptions options = MemoryOptionsOf(c.model, RunOf(c, v1::DEVICE, int64_t{1} << 50), Rates{}, false);
    const bool reuse = c.lengths.prompt > 1 && c.lengths.rollouts > 1;
    ClusterShape cluster;
    if (reuse) cluster.prefix_rows = {c.lengths.prompt - 1};
    cluster.members.assign(static_cast<size_t>(c.lengths.rollouts),
                           {.rows = c.lengths.response, .prefix_rows = c.lengths.prompt - 1, .dense = !reuse});
    const auto choice = ClusterWays(options, cluster).Evaluate(ClusterWays(options, cluster).All().front());
    ASSERT_TRUE(choice.has_value());
    EXPECT_EQ(answer.all_kept_bytes, choice->peak_bytes) << "seed " << kSeed + 1 << " case " << i;
  }
}

TEST(FitTest, VerdictsTurnWhereTheBytesDo) {
  std::mt19937 random(kSeed + 2);
  const Case c = {.model = RandomCase(random).model, .dtype = "fp32", .lengths = {4000, 900, 9}};
  const FitAnswer needs = FitAnswers(c.model, {c.dtype}, c.lengths, 0).front();
  ASSERT_LT(needs.least_bytes, needs.all_kept_bytes);
  EXPECT_EQ(needs.verdict, FitVerdict::kUnknown);
  const auto verdict = [&](int64_t usable) {  // a device of which this much is left beside its runtime
    const int64_t device = usable + usable / 15;
    const FitAnswer answer = FitAnswers(c.model, {c.dtype}, c.lengths, device).front();
    EXPECT_EQ(answer.usable_bytes, usable);
    return answer.verdict;
  };
  EXPECT_EQ(verdict(needs.state_bytes), FitVerdict::kNo);
  EXPECT_EQ(verdict(needs.state_bytes + needs.least_bytes - 1), FitVerdict::kNo);
  EXPECT_EQ(verdict(needs.state_bytes + needs.least_bytes), FitVerdict::kRecomputed);
  EXPECT_EQ(verdict(needs.state_bytes + needs.all_kept_bytes - 1), FitVerdict::kRecomputed);
  EXPECT_EQ(verdict(needs.state_bytes + needs.all_kept_bytes), FitVerdict::kAllKept);
}

}  // namespace
}  // namespace stemma::cli
