#include "server/protocol/rank_parts.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace stemma::server {
namespace {

using ::testing::ElementsAre;

// Groups 4, 1 and 3 of a payload, with 2, 1 and 3 rollouts.
internal::v1::Prepare WholePrepare() {
  internal::v1::Prepare whole;
  whole.set_denominator(12);
  for (const uint32_t group : {4u, 1u, 3u}) whole.mutable_plan()->add_groups(group);
  whole.mutable_plan()->set_epoch(2);
  for (const double weight : {0.25, 0.5, 1.0, 2.0, 3.0, 4.0}) whole.add_rollout_weights(weight);
  return whole;
}
const std::vector<int64_t> kNumRollouts = {9, 1, 9, 3, 2};

// A cluster of these groups, one rollout of each.
void AddCluster(v1::StepPlan& step, uint32_t dp_rank, const std::vector<uint32_t>& groups) {
  v1::Cluster& cluster = *step.add_clusters();
  cluster.set_dp_rank(dp_rank);
  for (const uint32_t group : groups) cluster.add_waves()->add_members()->set_group(group);
}

v1::Plan PlanOf(const v1::StepPlan& step) {
  v1::Plan plan;
  *plan.add_steps() = step;
  return plan;
}

TEST(PreparesOfRanksTest, HasItsGroupsTheirWeightsAndTheDenominatorOfAll) {
  internal::v1::Prepare whole = WholePrepare();
  AddCluster(*whole.mutable_plan(), 1, {3, 4});
  AddCluster(*whole.mutable_plan(), 0, {1});
  const std::vector<internal::v1::Prepare> ranks = PreparesOfRanks(whole, 3, kNumRollouts);
  ASSERT_EQ(ranks.size(), 3u);
  const internal::v1::Prepare& rank = ranks[1];
  EXPECT_THAT(rank.plan().groups(), ElementsAre(4, 3)) << "in the step's order";
  EXPECT_EQ(rank.plan().clusters_size(), 1);
  EXPECT_THAT(rank.rollout_weights(), ElementsAre(0.25, 0.5, 2, 3, 4));
  EXPECT_EQ(rank.denominator(), 12);
  EXPECT_EQ(rank.plan().epoch(), 2u);
  EXPECT_FALSE(rank.has_log_prob_pass()) << "only where the whole step has one";
  EXPECT_THAT(ranks[2].rollout_weights(), ElementsAre());
}

// Group 3 is shared by all three ranks, in another order than the ranks'; group 4 is whole on rank 1.
TEST(PreparesOfRanksTest, ASplitGroupIsDealtWholeToEachOfItsRanks) {
  internal::v1::Prepare whole = WholePrepare();
  AddCluster(*whole.mutable_plan(), 1, {4});
  for (const uint32_t rank : {2u, 0u, 1u}) {
    AddCluster(*whole.mutable_plan(), rank, {3});
    v1::Cluster& cluster = *whole.mutable_plan()->mutable_clusters()->rbegin();
    cluster.mutable_waves(0)->mutable_members(0)->set_rollout(rank);
    if (rank != 2) cluster.set_owner_rank(2);
  }
  const std::vector<internal::v1::Prepare> ranks = PreparesOfRanks(whole, 3, kNumRollouts);
  EXPECT_THAT(ranks[0].plan().groups(), ElementsAre(1, 3)) << "and group 1, in which nothing runs";
  EXPECT_THAT(ranks[1].plan().groups(), ElementsAre(4, 3));
  EXPECT_THAT(ranks[2].plan().groups(), ElementsAre(3));
  EXPECT_THAT(ranks[0].rollout_weights(), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(ranks[1].rollout_weights(), ElementsAre(0.25, 0.5, 2, 3, 4)) << "those of rollouts that others run too";
  EXPECT_THAT(ranks[2].rollout_weights(), ElementsAre(2, 3, 4));
  for (uint32_t rank = 0; rank < 3; ++rank) {
    const v1::Cluster& cluster = *ranks[rank].plan().clusters().rbegin();
    EXPECT_EQ(cluster.waves(0).members(0).rollout(), rank);
    EXPECT_EQ(cluster.has_owner_rank(), rank != 2);
  }
  EXPECT_THAT(PayloadGroupsOfRanks(PlanOf(whole.plan()), 5, 3),
              ElementsAre(ElementsAre(1, 3), ElementsAre(3, 4), ElementsAre(3)));
}

TEST(PreparesOfRanksTest, GroupsInWhichNothingRunsAreTheFirstRanks) {
  internal::v1::Prepare whole = WholePrepare();
  AddCluster(*whole.mutable_plan(), 1, {1});
  const std::vector<internal::v1::Prepare> ranks = PreparesOfRanks(whole, 2, kNumRollouts);
  EXPECT_THAT(ranks[0].plan().groups(), ElementsAre(4, 3));
  EXPECT_THAT(ranks[1].plan().groups(), ElementsAre(1));
}

// One rank is sent everything as it is.
TEST(PreparesOfRanksTest, OneRankHasTheWhole) {
  internal::v1::Prepare whole = WholePrepare();
  AddCluster(*whole.mutable_plan(), 0, {3, 4});
  AddCluster(*whole.mutable_log_prob_pass(), 0, {3});
  for (const uint32_t group : {4u, 1u, 3u}) whole.mutable_log_prob_pass()->add_groups(group);
  EXPECT_EQ(PreparesOfRanks(whole, 1, kNumRollouts)[0].SerializeAsString(), whole.SerializeAsString());
}

TEST(PreparesOfRanksTest, OneWeightOfAllRolloutsIsEveryRanks) {
  internal::v1::Prepare whole = WholePrepare();
  whole.clear_rollout_weights();
  whole.add_rollout_weights(0.75);
  for (const internal::v1::Prepare& prepare : PreparesOfRanks(whole, 2, kNumRollouts)) {
    EXPECT_THAT(prepare.rollout_weights(), ElementsAre(0.75));
  }
}

TEST(PreparesOfRanksTest, TheEntryPassIsTheRanks) {
  internal::v1::Prepare whole = WholePrepare();
  for (const uint32_t group : {4u, 1u}) whole.mutable_log_prob_pass()->add_groups(group);
  AddCluster(*whole.mutable_log_prob_pass(), 0, {4});
  AddCluster(*whole.mutable_log_prob_pass(), 1, {1});
  EXPECT_THAT(PreparesOfRanks(whole, 2, kNumRollouts)[1].log_prob_pass().groups(), ElementsAre(1));
}

// A step of some of the groups, in any order, cut into clusters of drawn ranks; in some groups nothing runs.
v1::StepPlan DrawStep(uint32_t num_groups, uint32_t num_ranks, std::mt19937& random) {
  std::vector<uint32_t> groups(num_groups);
  std::iota(groups.begin(), groups.end(), 0);
  std::shuffle(groups.begin(), groups.end(), random);
  groups.resize(1 + random() % num_groups);
  v1::StepPlan step;
  step.set_epoch(static_cast<uint32_t>(random() % 3));
  step.mutable_groups()->Add(groups.begin(), groups.end());
  std::shuffle(groups.begin(), groups.end(), random);
  while (!groups.empty()) {
    std::vector<uint32_t> some;
    for (size_t n = 1 + random() % 3; n > 0 && !groups.empty(); --n, groups.pop_back()) some.push_back(groups.back());
    if (random() % 4 == 0) continue;
    AddCluster(step, static_cast<uint32_t>(random() % num_ranks), some);
    // A group that is split: some of it on other ranks too.
    while (random() % 3 == 0) AddCluster(step, static_cast<uint32_t>(random() % num_ranks), {some[0]});
  }
  step.set_reduce_gradients_once(random() % 2 == 0);
  return step;
}

// A rank's part as its definition says it, one rank at a time.
v1::StepPlan PartOf(const v1::StepPlan& step, uint32_t rank) {
  v1::StepPlan part;
  part.set_epoch(step.epoch());
  part.set_reduce_gradients_once(step.reduce_gradients_once());
  std::set<uint32_t> own, others;
  for (const v1::Cluster& cluster : step.clusters()) {
    if (cluster.dp_rank() == rank) *part.add_clusters() = cluster;
    for (const v1::Wave& wave : cluster.waves()) {
      for (const v1::WaveMember& member : wave.members())
        (cluster.dp_rank() == rank ? own : others).insert(member.group());
    }
  }
  for (const uint32_t group : step.groups()) {
    if (own.contains(group) || (rank == 0 && !others.contains(group))) part.add_groups(group);
  }
  return part;
}

TEST(RankPartsTest, DrawnPlansAreDealtAsTheDefinitionSays) {
  for (uint32_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const uint32_t num_groups = 1 + random() % 12, num_ranks = 1 + random() % 5;
    v1::Plan plan;
    for (int n = 1 + static_cast<int>(random() % 3); n > 0; --n)
      *plan.add_steps() = DrawStep(num_groups, num_ranks, random);
    if (random() % 2 == 0) *plan.mutable_log_prob_pass() = DrawStep(num_groups, num_ranks, random);

    const auto payload = PayloadGroupsOfRanks(plan, num_groups, num_ranks);
    ASSERT_EQ(payload.size(), num_ranks);
    std::vector<std::set<uint32_t>> needed(num_ranks);
    for (const v1::StepPlan& step : plan.steps()) {
      const std::vector<v1::StepPlan> parts = PlansOfRanks(step, num_ranks);
      ASSERT_EQ(parts.size(), num_ranks);
      for (uint32_t rank = 0; rank < num_ranks; ++rank) {
        EXPECT_EQ(parts[rank].SerializeAsString(), PartOf(step, rank).SerializeAsString()) << "rank " << rank;
        needed[rank].insert(parts[rank].groups().begin(), parts[rank].groups().end());
      }
    }
    for (uint32_t rank = 0; rank < num_ranks; ++rank) {
      const v1::StepPlan pass = PartOf(plan.log_prob_pass(), rank);
      needed[rank].insert(pass.groups().begin(), pass.groups().end());
      if (num_ranks > 1) {
        EXPECT_EQ(payload[rank], std::vector<uint32_t>(needed[rank].begin(), needed[rank].end())) << "rank " << rank;
      } else {
        EXPECT_EQ(payload[rank].size(), num_groups) << "one rank is sent the whole request";
      }
    }
  }
}

}  // namespace
}  // namespace stemma::server
