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
}

}  // namespace
}  // namespace stemma::worker
