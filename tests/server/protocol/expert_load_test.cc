// What votes tell of experts: what is taken, how it adds up, and the metrics of it.
#include "server/protocol/expert_load.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "server/protocol/step_metrics.h"
#include "server/protocol/vote_merge.h"
#include "tests/testing/synthetic.h"

namespace stemma::server {
namespace {

using internal::v1::LayerExpertLoad;
using internal::v1::Vote;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::DoubleEq;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Key;
using ::testing::Not;
using ::testing::Pair;

constexpr uint32_t kLayers = 3;

ModelConfig FourExperts() {
  return testing::SyntheticModel({.layers = kLayers, .experts = Experts{.count = 4, .per_token = 2}});
}

void Tell(uint32_t layer, const std::vector<uint64_t>& logical, const std::vector<uint64_t>& computed, Vote& vote) {
  LayerExpertLoad& load = *vote.add_expert_load();
  load.set_layer(layer);
  load.mutable_logical_rows()->Add(logical.begin(), logical.end());
  load.mutable_computed_rows()->Add(computed.begin(), computed.end());
}

Vote Telling(uint32_t layer, const std::vector<uint64_t>& logical, const std::vector<uint64_t>& computed) {
  Vote vote;
  vote.set_yes(true);
  Tell(layer, logical, computed, vote);
  return vote;
}

Metrics MetricsOf(const Vote& vote, uint32_t expert_sets) {
  Metrics metrics;
  SetExpertMetrics(vote, expert_sets, metrics);
  return metrics;
}

TEST(ExpertLoadTest, RanksOfOtherRowsAddUpAndStagesStandBesideEachOther) {
  Vote first = Telling(0, {1, 2, 3, 4}, {1, 1, 1, 1});
  Tell(1, {5, 0, 0, 5}, {2, 0, 0, 2}, first);
  const Vote second_stage = Telling(2, {7, 7, 7, 7}, {6, 6, 6, 6});
  Vote other_copy = Telling(0, {10, 20, 30, 40}, {2, 3, 4, 5});
  Tell(1, {0, 1, 0, 0}, {0, 1, 0, 0}, other_copy);
  const Vote merged = MergeVotes(std::vector<Vote>{first, second_stage, other_copy});
  ASSERT_EQ(merged.expert_load_size(), 3);
  EXPECT_EQ(merged.expert_load(0).layer(), 0u);
  EXPECT_THAT(merged.expert_load(0).logical_rows(), ElementsAre(11, 22, 33, 44));
  EXPECT_THAT(merged.expert_load(0).computed_rows(), ElementsAre(3, 4, 5, 6));
  EXPECT_THAT(merged.expert_load(1).logical_rows(), ElementsAre(5, 1, 0, 5));
  EXPECT_EQ(merged.expert_load(2).layer(), 2u);
  EXPECT_THAT(merged.expert_load(2).logical_rows(), ElementsAre(7, 7, 7, 7));
}

TEST(ExpertLoadTest, MetricsAreOfTheMostUnevenLayer) {
  Vote vote = Telling(0, {10, 10, 10, 10}, {5, 5, 5, 5});
  Tell(1, {60, 20, 0, 0}, {10, 10, 0, 0}, vote);
  Tell(2, {3, 1, 0, 4}, {3, 1, 0, 4}, vote);
  EXPECT_THAT(MetricsOf(vote, 1),
              AllOf(Contains(Pair("moe/expert_load_max", DoubleEq(3))),  // 60 of 80, where 20 are an even share
                    Contains(Pair("moe/idle_experts", DoubleEq(3))), Not(Contains(Key("moe/rank_load_max")))));
  // Two ranks have two experts each, of the rows that are computed: 20 of 20 in layer 1.
  EXPECT_THAT(MetricsOf(vote, 2), Contains(Pair("moe/rank_load_max", DoubleEq(2))));
  EXPECT_THAT(MetricsOf(vote, 4), Contains(Pair("moe/rank_load_max", DoubleEq(2))));
}

TEST(ExpertLoadTest, NothingIsSaidWhereNothingRan) {
  EXPECT_THAT(MetricsOf(Vote(), 2), IsEmpty());
  EXPECT_THAT(MetricsOf(Telling(0, {0, 0, 0, 0}, {0, 0, 0, 0}), 2), IsEmpty());
}

TEST(ExpertLoadTest, ARequestHasTheLargestLoadAndTheMeanOfIdleExperts) {
  v1::UpdateResult result;
  for (const double factor : {1, 3}) {
    v1::StepResult& step = *result.add_steps();
    step.set_outcome(v1::StepResult::APPLIED);
    (*step.mutable_metrics())["moe/expert_load_max"] = factor;
    (*step.mutable_metrics())["moe/rank_load_max"] = 10 - factor;
    (*step.mutable_metrics())["moe/idle_experts"] = factor;
  }
  Metrics metrics;
  SetRequestMetrics(result, metrics);
  EXPECT_THAT(metrics,
              AllOf(Contains(Pair("moe/expert_load_max", DoubleEq(3))),
                    Contains(Pair("moe/rank_load_max", DoubleEq(9))), Contains(Pair("moe/idle_experts", DoubleEq(2)))));
}

TEST(ExpertLoadTest, WhatCannotBeIsABreach) {
  const v1::Mesh mesh = MakeMesh({.pp = 2, .tp = 2});
  const std::vector<uint64_t> four(4, 1), three(3, 1);
  const auto said = [&](const ModelConfig& model, uint32_t rank, const Vote& vote) {
    return std::string(CheckVote(mesh, model, rank, vote).message());
  };
  EXPECT_EQ(said(FourExperts(), 0, Telling(0, four, four)), "");
  EXPECT_EQ(said(FourExperts(), 2, Telling(kLayers - 1, four, four)), "") << "each stage tells of its layers";
  EXPECT_THAT(said(FourExperts(), 1, Telling(0, four, four)), HasSubstr("vote.expert_load is told by rank 1"));
  EXPECT_THAT(said({}, 0, Telling(0, four, four)), HasSubstr("the model has no experts"));
  EXPECT_THAT(said(FourExperts(), 0, Telling(kLayers, four, four)), HasSubstr("layer 3"));
  EXPECT_THAT(said(FourExperts(), 0, Telling(1, three, four)), HasSubstr("3 experts in layer 1, the model has 4"));
  EXPECT_THAT(said(FourExperts(), 0, Telling(1, four, {})), HasSubstr("0 experts in layer 1"));
  Vote twice = Telling(1, four, four);
  Tell(1, four, four, twice);
  EXPECT_THAT(said(FourExperts(), 0, twice), HasSubstr("layer 1 behind layer 1"));
}

}  // namespace
}  // namespace stemma::server
