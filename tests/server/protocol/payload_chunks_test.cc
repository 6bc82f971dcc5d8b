// Payloads are cut and put together again without loss, whatever the sizes.
#include "server/protocol/payload_chunks.h"

#include <map>
#include <numeric>

#include "gtest/gtest.h"

namespace stemma::server {
namespace {

std::shared_ptr<const TrainingRequest> Request(const std::vector<std::vector<int>>& rollout_bytes_of_groups) {
  auto request = std::make_shared<TrainingRequest>();
  for (const std::vector<int>& rollouts : rollout_bytes_of_groups) {
    v1::PromptGroup& group = request->groups.emplace_back();
    group.set_uid("g" + std::to_string(request->groups.size()));
    group.set_prompt_tokens(std::string(40, 'p'));
    group.set_stat_group("s");
    for (int bytes : rollouts) {
      group.add_rollouts()->set_rollout_id("r" + std::to_string(group.rollouts_size()));
      group.mutable_rollouts(group.rollouts_size() - 1)->set_response_tokens(std::string(bytes, 'x'));
    }
  }
  return request;
}

std::vector<uint32_t> AllGroups(const TrainingRequest& request) {
  std::vector<uint32_t> groups(request.groups.size());
  std::iota(groups.begin(), groups.end(), 0);
  return groups;
}

// Puts chunks together as a worker does; checks their sizes on the way.
// Returns them by their index in the request.
std::map<uint32_t, v1::PromptGroup> Reassemble(PayloadChunks chunks, uint64_t chunk_bytes, int& count) {
  std::map<uint32_t, v1::PromptGroup> groups;
  for (count = 0; !chunks.done() && count < 1000; ++count) {
    const internal::v1::PayloadChunk chunk = chunks.Next();
    EXPECT_EQ(chunk.id(), "id");
    EXPECT_EQ(chunk.last(), chunks.done());
    int rollouts = 0;
    EXPECT_EQ(chunk.group_indices_size(), chunk.groups_size());
    for (int i = 0; i < chunk.groups_size(); ++i) {
      const v1::PromptGroup& group = chunk.groups(i);
      rollouts += group.rollouts_size();
      const auto [to, begins] = groups.try_emplace(chunk.group_indices(i), group);
      if (begins) continue;
      EXPECT_EQ(chunk.group_indices(i), groups.rbegin()->first) << "only the last one is continued";
      EXPECT_TRUE(group.prompt_tokens().empty());
      EXPECT_EQ(group.uid(), to->second.uid());
      to->second.mutable_rollouts()->MergeFrom(group.rollouts());
    }
    if (rollouts > 1) {
      EXPECT_LE(chunk.ByteSizeLong(), chunk_bytes + 200) << "chunk " << count;
    }
  }
  return groups;
}

void ExpectSame(const std::vector<std::vector<int>>& sizes, uint64_t chunk_bytes, int expected_chunks) {
  const auto request = Request(sizes);
  int count = 0;
  const auto groups = Reassemble(PayloadChunks("id", request, AllGroups(*request), chunk_bytes), chunk_bytes, count);
  EXPECT_EQ(count, expected_chunks);
  ASSERT_EQ(groups.size(), request->groups.size());
  for (const auto& [index, group] : groups) {
    EXPECT_EQ(group.SerializeAsString(), request->groups[index].SerializeAsString());
  }
}

TEST(PayloadChunksTest, ARankIsSentItsGroupsOnly) {
  const auto request = Request({{10}, {700, 700}, {20}, {30}});
  int count = 0;
  const auto groups = Reassemble(PayloadChunks("id", request, {1, 3}, 1000), 1000, count);
  ASSERT_EQ(groups.size(), 2u);
  for (const uint32_t index : {1u, 3u}) {
    EXPECT_EQ(groups.at(index).SerializeAsString(), request->groups[index].SerializeAsString());
  }
  EXPECT_TRUE(Reassemble(PayloadChunks("id", request, {}, 1000), 1000, count).empty());
  EXPECT_EQ(count, 1) << "a rank without groups is told that there are none";
}

TEST(PayloadChunksTest, SmallGroupsShareAChunk) { ExpectSame({{10, 10}, {10}, {}}, 1000, 1); }

TEST(PayloadChunksTest, AGroupLargerThanAChunkContinuesUnderItsUid) { ExpectSame({{400, 400, 400}, {400}}, 1000, 2); }

TEST(PayloadChunksTest, ARolloutLargerThanAChunkTravelsAlone) { ExpectSame({{5000, 10, 5000}, {10}}, 1000, 5); }

TEST(PayloadChunksTest, AChunkMayBeFilledExactly) {
  const auto request = Request({{100, 100}});
  const v1::PromptGroup& group = request->groups[0];
  const uint64_t both =
      group.prompt_tokens().size() + group.rollouts(0).ByteSizeLong() + group.rollouts(1).ByteSizeLong();
  ExpectSame({{100, 100}}, both, 1);
  ExpectSame({{100, 100}}, both - 1, 2);
}

TEST(PayloadChunksTest, ManyGroupsMakeManyChunks) {
  ExpectSame(std::vector<std::vector<int>>(20, {300, 300}), 1000, 15);
}

}  // namespace
}  // namespace stemma::server
