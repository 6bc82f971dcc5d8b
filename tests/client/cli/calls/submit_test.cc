#include "client/cli/calls/submit.h"

#include "gtest/gtest.h"

namespace stemma::cli {
namespace {

v1::PromptGroup Group(const std::string& uid, int num_rollouts, size_t rollout_bytes) {
  v1::PromptGroup group;
  group.set_uid(uid);
  group.set_prompt_tokens(std::string(40, 'p'));
  group.set_stat_group("stat-" + uid);
  for (int i = 0; i < num_rollouts; ++i) {
    v1::Rollout& rollout = *group.add_rollouts();
    rollout.set_rollout_id(uid + "/" + std::to_string(i));
    rollout.set_response_tokens(std::string(rollout_bytes, 'r'));
  }
  return group;
}

std::vector<v1::GroupPart> Parts(const std::vector<v1::PromptGroup>& groups, uint64_t message_bytes) {
  v1::GroupPart first;
  first.mutable_update()->mutable_request()->set_request_id("id");
  std::vector<v1::GroupPart> parts;
  EXPECT_TRUE(SendParts(first, groups, message_bytes, [&](const v1::GroupPart& part) {
    parts.push_back(part);
    return true;
  }));
  return parts;
}

// What a receiver makes of the parts.
std::vector<v1::PromptGroup> Joined(const std::vector<v1::GroupPart>& parts) {
  std::vector<v1::PromptGroup> groups;
  for (const v1::GroupPart& part : parts) {
    if (part.has_group()) groups.push_back(part.group());
    if (!part.has_more()) continue;
    EXPECT_EQ(part.more().uid(), groups.back().uid());
    groups.back().mutable_rollouts()->MergeFrom(part.more().rollouts());
  }
  return groups;
}

TEST(SubmitTest, HeaderComesFirstAndEndLastWithTheCounts) {
  const auto parts = Parts({Group("a", 2, 8), Group("b", 3, 8)}, 1 << 20);
  ASSERT_EQ(parts.size(), 4u);
  EXPECT_TRUE(parts.front().has_update());
  ASSERT_TRUE(parts.back().has_end());
  EXPECT_EQ(parts.back().end().num_groups(), 2u);
  EXPECT_EQ(parts.back().end().num_rollouts(), 5u);
}

TEST(SubmitTest, ALargeGroupContinuesInFurtherMessagesBelowTheLimit) {
  const std::vector<v1::PromptGroup> groups = {Group("a", 50, 100), Group("b", 1, 10)};
  const auto parts = Parts(groups, 1000);
  EXPECT_GT(parts.size(), 6u);
  for (const v1::GroupPart& part : parts) EXPECT_LE(part.ByteSizeLong(), 1000u);
  const auto joined = Joined(parts);
  ASSERT_EQ(joined.size(), groups.size());
  for (size_t i = 0; i < groups.size(); ++i) {
    EXPECT_EQ(joined[i].SerializeAsString(), groups[i].SerializeAsString());
  }
}

TEST(SubmitTest, ARolloutAboveTheLimitGoesAloneButGoes) {
  const auto parts = Parts({Group("a", 3, 5000)}, 1000);
  EXPECT_EQ(Joined(parts)[0].rollouts_size(), 3);
  EXPECT_EQ(parts.size(), 2u + 3u);
}

TEST(SubmitTest, AGroupWithoutRolloutsIsSent) { EXPECT_EQ(Joined(Parts({Group("a", 0, 0)}, 1000)).size(), 1u); }

TEST(SubmitTest, NothingIsSentAfterTheStreamBroke) {
  const std::vector<v1::PromptGroup> groups = {Group("a", 5, 200), Group("b", 2, 8)};
  // The call that fails may be any: the header, a group or its continuation, the end.
  const auto calls_until = [&](int broken) {
    int calls = 0;
    EXPECT_EQ(SendParts(v1::GroupPart(), groups, 500, [&](const v1::GroupPart&) { return ++calls != broken; }),
              broken == 0);
    return calls;
  };
  const int all = calls_until(0);
  EXPECT_GE(all, 6) << "the first group takes three messages";
  for (int broken = 1; broken <= all; ++broken) EXPECT_EQ(calls_until(broken), broken);
}

}  // namespace
}  // namespace stemma::cli
