// What always holds of plans with split groups, and of their reports.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/planner/planner.h"
#include "tests/testing/namespaces.h"

namespace stemma::testing {

// Checks the plan, whichever groups are split: the parts of a group are each of its rollouts once, on
// different ranks, alone in their clusters; only the owner computes the prefix; all ranks have split groups in one
// order.
inline void ExpectSplitsHold(const v1::StepPlan& step, const PlannerRequest& request) {
  struct Parts {
    std::vector<uint32_t> ranks, helpers;
    std::multiset<uint32_t> rollouts;
    int owners = 0;
  };
  std::map<uint32_t, Parts> of_groups;
  std::map<uint32_t, std::vector<uint32_t>> order;  // of each rank, the split groups
  for (const v1::Cluster& cluster : step.clusters()) {
    const bool owns = !cluster.helper_ranks().empty(), helps = cluster.has_owner_rank();
    ASSERT_FALSE(owns && helps);
    if (!owns && !helps) continue;
    ASSERT_EQ(cluster.prefix_groups_size(), 1);
    const uint32_t g = cluster.prefix_groups(0);
    const auto& all = request.groups[g].rollouts;
    ASSERT_EQ(cluster.prefix_rollouts_size(), 1);
    EXPECT_EQ(cluster.prefix_rollouts(0), std::count_if(all.begin(), all.end(), [](const auto& r) { return r.run; }))
        << "of all parts";
    Parts& parts = of_groups[g];
    parts.ranks.push_back(cluster.dp_rank());
    order[cluster.dp_rank()].push_back(g);
    if (owns) ++parts.owners;
    if (owns) parts.helpers.assign(cluster.helper_ranks().begin(), cluster.helper_ranks().end());
    if (helps) {
      EXPECT_NE(cluster.owner_rank(), cluster.dp_rank());
      EXPECT_EQ(cluster.prefix_policy(), v1::TAPE_POLICY_UNSPECIFIED);
      EXPECT_EQ(cluster.prefix_block_rows(), 0U);
      EXPECT_FALSE(cluster.offload_prefix());
      EXPECT_EQ(cluster.offload_headroom_bytes(), 0U);
    }
    EXPECT_GT(cluster.waves_size(), 0);
    for (const v1::Wave& wave : cluster.waves()) {
      for (const v1::WaveMember& member : wave.members()) {
        EXPECT_EQ(member.group(), g);
        parts.rollouts.insert(member.rollout());
      }
    }
  }
  for (const auto& [g, parts] : of_groups) {
    SCOPED_TRACE(absl::StrCat("group ", g));
    EXPECT_EQ(parts.owners, 1);
    EXPECT_TRUE(std::is_sorted(parts.helpers.begin(), parts.helpers.end()));
    EXPECT_EQ(parts.helpers.size() + 1, parts.ranks.size());
    EXPECT_EQ(std::set<uint32_t>(parts.ranks.begin(), parts.ranks.end()).size(), parts.ranks.size());
    std::multiset<uint32_t> running;
    for (uint32_t i = 0; i < request.groups[g].rollouts.size(); ++i) {
      if (request.groups[g].rollouts[i].run) running.insert(i);
    }
    EXPECT_EQ(parts.rollouts, running);
  }
  for (const auto& [rank, groups] : order) {
    for (const auto& [other, of_other] : order) {
      std::vector<uint32_t> here, there;
      for (const uint32_t g : groups) {
        if (std::count(of_other.begin(), of_other.end(), g) > 0) here.push_back(g);
      }
      for (const uint32_t g : of_other) {
        if (std::count(groups.begin(), groups.end(), g) > 0) there.push_back(g);
      }
      EXPECT_EQ(here, there) << "ranks " << rank << " and " << other;
    }
  }
}

inline void ExpectReportHolds(const v1::StepPlan& step, const v1::StepReport& report, const PlannerRequest& request) {
  std::map<std::string, const v1::Cluster*> owners;
  for (const v1::Cluster& cluster : step.clusters()) {
    if (!cluster.helper_ranks().empty()) owners[request.groups[cluster.prefix_groups(0)].uid] = &cluster;
  }
  ASSERT_EQ(static_cast<size_t>(report.split_groups_size()), owners.size());
  uint64_t tokens = 0;
  for (const v1::RankReport& rank : report.ranks()) {
    tokens += rank.tokens_computed();
    EXPECT_LE(rank.parts(), rank.groups());
    EXPECT_GE(rank.exchange_s(), 0);
    if (rank.parts() == 0) {
      EXPECT_EQ(rank.exchange_s(), 0);
    }
  }
  EXPECT_EQ(tokens, report.tokens_computed()) << "no prefix is counted twice";
  for (const v1::SplitGroup& split : report.split_groups()) {
    const v1::Cluster& owner = *owners.at(split.uid());
    ASSERT_EQ(split.ranks_size(), owner.helper_ranks_size() + 1);
    ASSERT_EQ(split.rollouts_size(), split.ranks_size());
    EXPECT_EQ(split.ranks(0), owner.dp_rank());
    uint32_t rollouts = 0;
    for (const uint32_t n : split.rollouts()) rollouts += n;
    const auto& all = request.groups[owner.prefix_groups(0)].rollouts;
    EXPECT_EQ(rollouts, std::count_if(all.begin(), all.end(), [](const PlannerRollout& r) { return r.run; }));
    EXPECT_GT(split.seconds(), 0);
  }
}

}  // namespace stemma::testing
