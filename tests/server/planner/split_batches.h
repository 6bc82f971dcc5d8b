// Mini-batches with what each of their groups costs in parts, and what always holds of a placement with split groups: a
// rank-by-rank simulation of it ends when the placement says.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "server/planner/group_split.h"
#include "tests/server/planner/drawn_clusters.h"
#include "tests/testing/namespaces.h"

namespace stemma::testing {

inline constexpr double kRounding = 1e-9;  // sums of a few hundred doubles in two orders

// A mini-batch with what each of its groups costs in parts.
struct Batch {
  std::vector<PlacementGroup> groups;
  std::vector<SplitCosts> costs;
  std::vector<bool> may_split;

  void Add(SplitCosts one, bool may) {
    const double waves = std::accumulate(one.rollouts_s.begin(), one.rollouts_s.end(), 0.0);
    groups.push_back({.prefix_s = one.forward_s + one.backward_s, .suffixes_s = waves});
    costs.push_back(std::move(one));
    may_split.push_back(may && costs.back().rollouts_s.size() > 1);
  }
  SplitRequest Request(int32_t ranks, v1::Split mode) const {
    return {.groups = groups, .may_split = may_split, .ranks = ranks, .mode = mode, .costs = [this](size_t g) {
              return costs[g];
            }};
  }
  double total_s() const {
    double sum = 0;
    for (const PlacementGroup& group : groups) sum += group.total_s();
    return sum;
  }
};

// Counts rows and causal pairs in seconds of no machine. K/V of a row are sent in a fiftieth of its forward's time.
inline SplitCosts CostsOf(double prefix_rows, const std::vector<double>& suffix_rows) {
  const auto seconds = [](double ancestors, double rows) { return 1e-6 * rows * (1 + (ancestors + rows / 2) / 4096); };
  const double send = 2e-8 * prefix_rows;
  SplitCosts costs = {.forward_s = seconds(0, prefix_rows),
                      .backward_s = 2 * seconds(0, prefix_rows),
                      .part_s = 1e-5,
                      .send_s = send,
                      .return_s = 2 * send};
  for (const double rows : suffix_rows) costs.rollouts_s.push_back(3 * seconds(prefix_rows, rows));
  return costs;
}

inline SplitCosts DrawCosts(int64_t rollouts, std::mt19937_64& random) {
  std::vector<double> rows;
  for (int64_t i = 0; i < rollouts; ++i) rows.push_back(DrawLognormal(500, 1, random));
  return CostsOf(DrawLognormal(700, 1, random), rows);
}

// A rank's step as its program: what it does alone, and with whom it meets.
struct Act {
  double alone_s = 0;
  size_t peer = 0;
  int64_t meeting = -1;  // below 0: alone
  double meeting_s = 0;
};

inline std::vector<std::vector<Act>> ActsOfRanks(const Batch& batch, const SplitPlacement& p) {
  std::vector<std::vector<Act>> acts(p.whole.size());
  int64_t meeting = 0;
  for (size_t place = 0; place <= p.splits.size(); ++place) {
    for (size_t rank = 0; rank < acts.size(); ++rank) {
      for (const size_t g : p.whole[rank][place]) acts[rank].push_back({.alone_s = batch.groups[g].total_s()});
    }
    if (place == p.splits.size()) break;
    const GroupSplit& split = p.splits[place];
    const SplitCosts& costs = batch.costs[split.group];
    const auto owner = static_cast<size_t>(split.ranks[0]);
    const auto meet = [&](double seconds) {
      for (size_t i = 1; i < split.ranks.size(); ++i) {
        const auto helper = static_cast<size_t>(split.ranks[i]);
        acts[owner].push_back({.peer = helper, .meeting = meeting, .meeting_s = seconds});
        acts[helper].push_back({.peer = owner, .meeting = meeting++, .meeting_s = seconds});
      }
    };
    acts[owner].push_back({.alone_s = costs.forward_s});
    meet(costs.send_s);
    for (size_t i = 0; i < split.ranks.size(); ++i) {
      Act waves = {.alone_s = i > 0 ? costs.part_s : 0};
      for (const uint32_t rollout : split.rollouts[i]) waves.alone_s += costs.rollouts_s[rollout];
      acts[static_cast<size_t>(split.ranks[i])].push_back(waves);
    }
    meet(costs.return_s);
    acts[owner].push_back({.alone_s = costs.backward_s});
  }
  return acts;
}

// Runs the programs as processes would, each as far as it can; a circle of waits is a failure.
inline std::vector<double> Simulate(const std::vector<std::vector<Act>>& acts) {
  std::vector<double> clock(acts.size());
  std::vector<size_t> next(acts.size());
  bool moved = true;
  while (moved) {
    moved = false;
    for (size_t rank = 0; rank < acts.size(); ++rank) {
      for (; next[rank] < acts[rank].size(); ++next[rank], moved = true) {
        const Act& act = acts[rank][next[rank]];
        if (act.meeting < 0) {
          clock[rank] += act.alone_s;
          continue;
        }
        const size_t peer = act.peer;
        if (next[peer] == acts[peer].size() || acts[peer][next[peer]].meeting != act.meeting) break;
        clock[rank] = clock[peer] = std::max(clock[rank], clock[peer]) + act.meeting_s;
        ++next[peer];
      }
    }
  }
  for (size_t rank = 0; rank < acts.size(); ++rank) EXPECT_EQ(next[rank], acts[rank].size()) << "waits for ever";
  return clock;
}

inline void CheckAlways(const Batch& batch, const SplitRequest& request, const SplitPlacement& p) {
  std::vector<int> seen(batch.groups.size());
  ASSERT_EQ(p.whole.size(), static_cast<size_t>(request.ranks));
  for (size_t rank = 0; rank < p.whole.size(); ++rank) {
    ASSERT_EQ(p.whole[rank].size(), p.splits.size() + 1);
    for (const std::vector<size_t>& place : p.whole[rank]) {
      for (const size_t g : place) {
        ++seen[g];
        const int32_t pinned = batch.groups[g].pinned_rank;
        EXPECT_TRUE(pinned == kNotPinned || pinned == static_cast<int32_t>(rank)) << "group " << g;
      }
    }
  }
  for (const GroupSplit& split : p.splits) {
    ++seen[split.group];
    EXPECT_EQ(batch.groups[split.group].pinned_rank, kNotPinned);
    ASSERT_GE(split.ranks.size(), 2U);
    ASSERT_EQ(split.ranks.size(), split.rollouts.size());
    EXPECT_TRUE(std::is_sorted(split.ranks.begin() + 1, split.ranks.end())) << "helpers ascend";
    EXPECT_EQ(std::set<int32_t>(split.ranks.begin(), split.ranks.end()).size(), split.ranks.size());
    std::multiset<uint32_t> rollouts;
    for (size_t i = 0; i < split.ranks.size(); ++i) {
      EXPECT_TRUE(split.ranks[i] >= 0 && split.ranks[i] < request.ranks);
      EXPECT_FALSE(split.rollouts[i].empty()) << "group " << split.group << " rank " << split.ranks[i];
      EXPECT_TRUE(std::is_sorted(split.rollouts[i].begin(), split.rollouts[i].end()));
      rollouts.insert(split.rollouts[i].begin(), split.rollouts[i].end());
    }
    std::multiset<uint32_t> all;
    for (uint32_t i = 0; i < batch.costs[split.group].rollouts_s.size(); ++i) all.insert(i);
    EXPECT_EQ(rollouts, all) << "each rollout once";
  }
  EXPECT_EQ(seen, std::vector<int>(batch.groups.size(), 1)) << "each group once";
  const std::vector<double> ends = Simulate(ActsOfRanks(batch, p));
  for (size_t rank = 0; rank < ends.size(); ++rank) {
    EXPECT_NEAR(p.finish_s[rank], ends[rank], kRounding * (1 + ends[rank])) << "rank " << rank;
  }
  EXPECT_GE(p.over_bound(), 0);
}

inline Batch DrawBatch(std::mt19937_64& random) {
  Batch batch;
  for (int64_t g = DrawSize(1, 26, random) - 1; g > 0; --g) {
    batch.Add(DrawCosts(DrawSize(1, 12, random), random), random() % 4 != 0);
    if (random() % 6 == 0) {  // hot
      for (double& seconds : batch.costs.back().rollouts_s) seconds *= 8;
      batch.groups.back().suffixes_s *= 8;
    }
  }
  return batch;
}

}  // namespace stemma::testing
