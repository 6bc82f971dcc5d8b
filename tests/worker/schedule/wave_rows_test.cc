#include "worker/schedule/wave_rows.h"

#include <gtest/gtest.h>

namespace stemma::worker {
namespace {

const std::vector<GroupShape> kGroups = {{/*P=*/5, {3, 2}}, {/*P=*/1, {4}}};

v1::Wave WaveOf(std::initializer_list<std::pair<uint32_t, uint32_t>> members) {
  v1::Wave wave;
  for (const auto& [group, rollout] : members) {
    v1::WaveMember& member = *wave.add_members();
    member.set_group(group);
    member.set_rollout(rollout);
  }
  return wave;
}

TEST(WaveRowsTest, ASuffixStartsAtTheLastPromptTokenAndHasResponseManyRows) {
  v1::Cluster cluster;
  cluster.add_prefix_groups(0);
  const auto rows = WaveRows(kGroups, cluster, WaveOf({{0, 0}, {0, 1}}));
  ASSERT_TRUE(rows.ok());
  EXPECT_EQ((*rows)[0].begin, 0);
  EXPECT_EQ((*rows)[0].end, 3);
  EXPECT_EQ((*rows)[0].first_position, 4);  // P - 1: positions never restart
  EXPECT_EQ((*rows)[0].kv_only_rows, 0);
  EXPECT_EQ((*rows)[0].prefix, 0);
  EXPECT_EQ((*rows)[1].begin, 3);
  EXPECT_EQ((*rows)[1].head_begin, 3);
}

TEST(WaveRowsTest, ATrajectoryRunsItsPromptToo) {
  const auto rows = WaveRows(kGroups, {}, WaveOf({{0, 1}, {1, 0}}));
  ASSERT_TRUE(rows.ok());
  EXPECT_EQ((*rows)[0].end, 6);  // P - 1 + R
  EXPECT_EQ((*rows)[0].kv_only_rows, 4);
  EXPECT_EQ((*rows)[0].first_position, 0);
  EXPECT_EQ((*rows)[0].prefix, -1);
  EXPECT_EQ((*rows)[1].end, 10);
  EXPECT_EQ((*rows)[1].kv_only_rows, 0);  // P = 1: nothing before the last prompt token
  EXPECT_EQ((*rows)[1].head_begin, 2);
}

TEST(WaveRowsTest, APlanThatThePayloadDoesNotMatchIsRefused) {
  for (const auto& [group, rollout] : {std::pair(2u, 0u), {0u, 2u}, {1u, 1u}}) {
    const absl::Status status = WaveRows(kGroups, {}, WaveOf({{group, rollout}})).status();
    EXPECT_NE(status.message().find("not in the payload"), std::string::npos) << group << "/" << rollout << status;
  }
  v1::Cluster empty_prefix;
  empty_prefix.add_prefix_groups(1);
  EXPECT_FALSE(WaveRows(kGroups, empty_prefix, WaveOf({{1, 0}})).ok());
  const std::vector<GroupShape> without_response = {{/*P=*/5, {0}}};
  EXPECT_EQ(WaveRows(without_response, {}, WaveOf({{0, 0}})).status().message(),
            "the plan runs group 0 rollout 0, which has no rows");
}

// The pieces of all ranks are the suffix, and each stands where the whole one has it.
TEST(WaveRowsTest, RanksThatCutASuffixHaveAllItsRowsOnce) {
  const std::vector<GroupShape> groups = {{/*P=*/5, {23}}};
  v1::Cluster cluster;
  cluster.add_prefix_groups(0);
  v1::Wave wave = WaveOf({{0, 0}});
  wave.set_cut_rows(true);
  const auto whole = WaveRows(groups, cluster, wave);
  ASSERT_TRUE(whole.ok());
  for (const int64_t ranks : {2, 3, 5}) {
    ASSERT_TRUE(CheckCutRows(*whole, ranks).ok());
    std::vector<int> seen(23);
    for (int64_t rank = 0; rank < ranks; ++rank) {
      int64_t next = 0;
      for (const MemberRows& piece : RowsOfRank(wave, *whole, rank, ranks)) {
        EXPECT_EQ(piece.begin, next);
        EXPECT_EQ(piece.head_begin, next);
        EXPECT_EQ(piece.prefix, 0);
        EXPECT_EQ(piece.first_position, 4 + piece.suffix_begin);
        next = piece.end;
        for (int64_t row = 0; row < piece.end - piece.begin; ++row) {
          ++seen[static_cast<size_t>(piece.suffix_begin + row)];
        }
      }
      EXPECT_GT(next, 0) << "rank " << rank << " of " << ranks;
    }
    EXPECT_EQ(seen, std::vector<int>(23, 1)) << ranks;
  }
  EXPECT_EQ(RowsOfRank(WaveOf({{0, 0}}), *whole, 1, 2).size(), 1U) << "of a wave that is not cut all rows";
}

TEST(WaveRowsTest, WhatCannotBeCutIsRefused) {
  v1::Cluster cluster;
  cluster.add_prefix_groups(0);
  const auto problem = [](const v1::Cluster& of, const v1::Wave& wave, int64_t ranks) {
    return std::string(CheckCutRows(*WaveRows(kGroups, of, wave), ranks).message());
  };
  EXPECT_EQ(problem(cluster, WaveOf({}), 2), "the plan cuts the rows of a wave of 0 members: it has one");
  EXPECT_EQ(problem(cluster, WaveOf({{0, 0}, {0, 1}}), 2), "the plan cuts the rows of a wave of 2 members: it has one");
  EXPECT_EQ(problem({}, WaveOf({{0, 0}}), 2),
            "the plan cuts the rows of group 0 rollout 0, whose trajectory has a prefix of its own");
  EXPECT_EQ(problem(cluster, WaveOf({{0, 0}}), 2),
            "the plan cuts the rows of group 0 rollout 0, which has 3: of 4 at least");
  EXPECT_EQ(problem({}, WaveOf({{1, 0}}), 2), "") << "P = 1: two rows each";
}

}  // namespace
}  // namespace stemma::worker
