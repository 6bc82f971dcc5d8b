// Payloads are cut and put together again without loss, whatever the sizes.
#include "server/protocol/payload_chunks.h"

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

// Puts chunks together as a worker does; checks their sizes on the way.
std::vector<v1::PromptGroup> Reassemble(PayloadChunks chunks, uint64_t chunk_bytes, int& count) {
  std::vector<v1::PromptGroup> groups;
  for (count = 0; !chunks.done() && count < 1000; ++count) {
    const internal::v1::PayloadChunk chunk = chunks.Next();
    EXPECT_EQ(chunk.id(), "id");
    EXPECT_EQ(chunk.last(), chunks.done());
    int rollouts = 0;
    for (const v1::PromptGroup& group : chunk.groups()) {
      rollouts += group.rollouts_size();
      if (!groups.empty() && groups.back().uid() == group.uid()) {
        EXPECT_TRUE(group.prompt_tokens().empty());
        groups.back().mutable_rollouts()->MergeFrom(group.rollouts());
      } else {
        groups.push_back(group);
      }
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
  const std::vector<v1::PromptGroup> groups = Reassemble(PayloadChunks("id", request, chunk_bytes), chunk_bytes, count);
  EXPECT_EQ(count, expected_chunks);
  ASSERT_EQ(groups.size(), request->groups.size());
  for (size_t i = 0; i < groups.size(); ++i) {
    EXPECT_EQ(groups[i].SerializeAsString(), request->groups[i].SerializeAsString());
  }
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
