// Programs of ranks that share groups, expanded from plans that are drawn, against each other; and what a plan of split
// groups must not say.
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "common/base/mesh.h"
#include "tests/testing/draw.h"
#include "tests/testing/draw_stages.h"
#include "tests/worker/schedule/programs.h"
#include "worker/schedule/program.h"
#include "worker/schedule/split_groups.h"
#include "worker/schedule/stage_orders.h"

namespace stemma::worker {
namespace {

using testing::CheckPrograms;
using testing::ProgramPeaks;

using enum OperationKind;

constexpr int64_t kKvRowBytes = 64, kGradientRowBytes = 128;

RankSizes SizesOfRank(int rank, int num_ranks) {
  return {.copy = rank,
          .num_copies = num_ranks,
          .kv_row_bytes = kKvRowBytes,
          .gradient_row_bytes = kGradientRowBytes,
          .prefix_rows = {10, 20, 30, 40, 50, 60}};
}

// Draws for each rank its clusters of six groups, each of which is whole or split over some ranks.
std::vector<v1::StepPlan> DrawSplitPlans(std::mt19937& random, int num_ranks) {
  std::vector<v1::StepPlan> plans(static_cast<size_t>(num_ranks));
  for (uint32_t group = 0; group < 6; ++group) {
    std::vector<uint32_t> ranks(static_cast<size_t>(num_ranks));
    std::iota(ranks.begin(), ranks.end(), 0);
    std::shuffle(ranks.begin(), ranks.end(), random);
    ranks.resize(1 + random() % ranks.size());
    std::sort(ranks.begin() + 1, ranks.end());
    for (size_t i = 0; i < ranks.size(); ++i) {
      v1::Cluster& cluster = *plans[ranks[i]].add_clusters();
      cluster.set_dp_rank(ranks[i]);
      cluster.add_prefix_groups(group);
      for (uint32_t w = 1 + random() % 3; w > 0; --w) {
        v1::WaveMember& member = *cluster.add_waves()->add_members();
        member.set_group(group);
        member.set_rollout(w);
      }
      if (i > 0) cluster.set_owner_rank(ranks[0]);
      for (size_t helper = 1; i == 0 && helper < ranks.size(); ++helper) cluster.add_helper_ranks(ranks[helper]);
    }
  }
  return plans;
}

std::vector<Program> Expand(const std::vector<v1::StepPlan>& plans, bool forward_only) {
  std::vector<Program> programs;
  for (size_t rank = 0; rank < plans.size(); ++rank) {
    programs.push_back(
        ExpandStep(plans[rank], forward_only, SizesOfRank(static_cast<int>(rank), static_cast<int>(plans.size()))));
  }
  return programs;
}

int64_t SentBytes(const std::vector<Program>& programs) {
  int64_t bytes = 0;
  for (const Program& program : programs) {
    for (const Operation& operation : program) bytes += operation.kind == kSend ? operation.exchange.bytes : 0;
  }
  return bytes;
}

// Rank 0 owns group 2 and rank 1 helps.
std::vector<v1::StepPlan> OnePair() {
  std::vector<v1::StepPlan> plans(2);
  for (uint32_t rank = 0; rank < 2; ++rank) {
    v1::Cluster& cluster = *plans[rank].add_clusters();
    cluster.set_dp_rank(rank);
    cluster.add_prefix_groups(2);
    v1::WaveMember& member = *cluster.add_waves()->add_members();
    member.set_group(2);
    member.set_rollout(rank);
  }
  plans[0].mutable_clusters(0)->add_helper_ranks(1);
  plans[1].mutable_clusters(0)->set_owner_rank(0);
  return plans;
}

TEST(SplitProgramTest, TheOwnerRunsPhasesAAndCAndTheHelperNeither) {
  const std::vector<Program> both = Expand(OnePair(), false);
  EXPECT_EQ(
      Text(both[0]),
      "PrefixForward(cluster 0) Send(\"kv of group 2\", 1920 bytes, ranks 0 1) WaveForward(cluster 0, wave 0) "
      "WaveBackward(cluster 0, wave 0) Receive(\"gkv of group 2\", 3840 bytes, ranks 1 0) PrefixBackward(cluster 0)");
  EXPECT_EQ(Text(both[1]),
            "Receive(\"kv of group 2\", 1920 bytes, ranks 0 1) WaveForward(cluster 0, wave 0) "
            "WaveBackward(cluster 0, wave 0) Send(\"gkv of group 2\", 3840 bytes, ranks 1 0)");
  const std::vector<Program> forward = Expand(OnePair(), true);
  EXPECT_EQ(Text(forward[0]),
            "PrefixForward(cluster 0) Send(\"kv of group 2\", 1920 bytes, ranks 0 1) WaveForward(cluster 0, wave 0)");
  EXPECT_EQ(Text(forward[1]), "Receive(\"kv of group 2\", 1920 bytes, ranks 0 1) WaveForward(cluster 0, wave 0)");
}

TEST(SplitProgramTest, DrawnPlansPassAndSendTheirFormulasBytes) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    const int num_ranks = 2 + static_cast<int>(random() % 4);
    const std::vector<v1::StepPlan> plans = DrawSplitPlans(random, num_ranks);
    int64_t helper_rows = 0;
    for (int rank = 0; rank < num_ranks; ++rank) {
      const RankSizes sizes = SizesOfRank(rank, num_ranks);
      const v1::StepPlan& plan = plans[static_cast<size_t>(rank)];
      EXPECT_TRUE(CheckSplitGroups(plan, sizes).ok()) << "seed " << seed << ": " << CheckSplitGroups(plan, sizes);
      for (const v1::Cluster& cluster : plan.clusters()) {
        helper_rows += cluster.helper_ranks_size() * sizes.prefix_rows[cluster.prefix_groups(0)];
      }
    }
    for (const bool forward_only : {false, true}) {
      const std::vector<Program> programs = Expand(plans, forward_only);
      const auto peaks = CheckPrograms(programs, forward_only);
      ASSERT_TRUE(peaks.ok()) << "seed " << seed << ": " << peaks.status();
      EXPECT_EQ(SentBytes(programs), helper_rows * (kKvRowBytes + (forward_only ? 0 : kGradientRowBytes)));
      for (const ProgramPeaks& of_rank : *peaks) EXPECT_TRUE(forward_only || of_rank.live_clusters <= 1);
    }
  }
}

// Draws the orders of all copies' stages, and returns the programs of all ranks in the order of their numbers.
std::vector<Program> ExpandStages(std::vector<v1::StepPlan>& plans, int stages, uint32_t seed, bool forward_only) {
  const auto num_copies = static_cast<int>(plans.size());
  v1::StepPlan step;
  for (const v1::StepPlan& plan : plans) {
    for (const v1::Cluster& cluster : plan.clusters()) *step.add_clusters() = cluster;
  }
  testing::DrawStages(seed, MakeMesh({.dp = static_cast<uint32_t>(num_copies), .pp = static_cast<uint32_t>(stages)}),
                      step);
  std::vector<Program> programs(static_cast<size_t>(num_copies * stages));
  for (int copy = 0; copy < num_copies; ++copy) {
    v1::StepPlan& plan = plans[static_cast<size_t>(copy)];
    *plan.mutable_copies() = step.copies();
    for (int stage = 0; stage < stages; ++stage) {
      RankSizes sizes = SizesOfRank(copy, num_copies);
      sizes.stage = stage;
      sizes.stages = stages;
      EXPECT_EQ(CheckStageOrders(plan, forward_only, sizes), absl::OkStatus());
      programs[static_cast<size_t>(stage * num_copies + copy)] = ExpandStep(plan, forward_only, sizes);
    }
  }
  return programs;
}

// Whatever orders copies draw, their stages never wait for each other in a circle: groups that they share stand alone.
TEST(SplitProgramTest, StagesOfSeveralCopiesShareGroups) {
  for (uint32_t i = 0; i < 150; ++i) {
    const uint32_t seed = testing::FirstSeed() + i;
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const int num_copies = 2 + static_cast<int>(random() % 3), stages = 2 + static_cast<int>(random() % 3);
    std::vector<v1::StepPlan> plans = DrawSplitPlans(random, num_copies);
    int64_t helper_rows = 0;
    for (const v1::StepPlan& plan : plans) {
      for (const v1::Cluster& cluster : plan.clusters()) {
        helper_rows += cluster.helper_ranks_size() * SizesOfRank(0, num_copies).prefix_rows[cluster.prefix_groups(0)];
      }
    }
    for (const bool forward_only : {false, true}) {
      const std::vector<Program> programs = ExpandStages(plans, stages, seed, forward_only);
      const auto peaks = CheckPrograms(programs, forward_only);
      ASSERT_TRUE(peaks.ok()) << peaks.status();
      EXPECT_EQ(SentBytes(programs), stages * helper_rows * (kKvRowBytes + (forward_only ? 0 : kGradientRowBytes)));
    }
  }
}

// Control: orders that know nothing of shared groups, each legal for its copy, may wait for each other for ever; none
// that does is accepted.
TEST(SplitProgramTest, StagesThatMixSharedGroupsWithOthersMayWaitForEver) {
  int refused = 0, stuck = 0;
  for (uint32_t i = 0; i < 100; ++i) {
    const uint32_t seed = testing::FirstSeed() + i;
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    std::vector<v1::StepPlan> plans = DrawSplitPlans(random, /*num_ranks=*/2), free = plans;
    for (v1::StepPlan& plan : free) {
      for (v1::Cluster& cluster : *plan.mutable_clusters()) {
        cluster.clear_owner_rank();
        cluster.clear_helper_ranks();
      }
    }
    ExpandStages(free, /*stages=*/2, seed, /*forward_only=*/false);
    bool accepted = true;
    std::vector<Program> programs(4);
    for (int rank = 0; rank < 4; ++rank) {
      v1::StepPlan& plan = plans[static_cast<size_t>(rank % 2)];
      *plan.mutable_copies() = free[0].copies();
      RankSizes sizes = SizesOfRank(rank % 2, 2);
      sizes.stage = rank / 2;
      sizes.stages = 2;
      accepted = accepted && CheckStageOrders(plan, false, sizes).ok();
      programs[static_cast<size_t>(rank)] = ExpandStep(plan, false, sizes);
    }
    const bool ends = CheckPrograms(programs, false).ok();
    EXPECT_TRUE(ends || !accepted);
    refused += accepted ? 0 : 1;
    stuck += ends ? 0 : 1;
  }
  EXPECT_GT(stuck, 5);
  EXPECT_GE(refused, stuck);
}

// Each exchange of a drawn plan, lost, doubled or of other bytes.
TEST(SplitProgramTest, AnyOneWrongExchangeOfADrawnPlanIsRefused) {
  for (uint32_t seed = 0; seed < 40; ++seed) {
    std::mt19937 random(seed);
    const std::vector<Program> right = Expand(DrawSplitPlans(random, 3), false);
    for (size_t rank = 0; rank < right.size(); ++rank) {
      for (size_t i = 0; i < right[rank].size(); ++i) {
        if (right[rank][i].part == PrefixPart::kNone) continue;
        const auto at = static_cast<int64_t>(i);
        std::vector<Program> lost = right, doubled = right, bytes = right;
        lost[rank].erase(lost[rank].begin() + at);
        doubled[rank].insert(doubled[rank].begin() + at, right[rank][i]);
        bytes[rank][i].exchange.bytes -= 8;
        EXPECT_FALSE(CheckPrograms(lost, false).ok()) << "seed " << seed << ", rank " << rank << ", operation " << i;
        EXPECT_FALSE(CheckPrograms(doubled, false).ok()) << "seed " << seed << ", rank " << rank << ", operation " << i;
        EXPECT_FALSE(CheckPrograms(bytes, false).ok()) << "seed " << seed << ", rank " << rank << ", operation " << i;
      }
    }
  }
}

TEST(SplitProgramTest, AHelperThatDoesAnotherRanksPartIsRefused) {
  const std::vector<Program> right = Expand(OnePair(), false);
  std::vector<Program> late = right;
  std::swap(late[1][0], late[1][1]);
  ExpectRefused(late, "rank 1, operation 0, WaveForward(cluster 0, wave 0): its cluster has no hot set now");
  std::vector<Program> early = right;
  std::swap(early[1][2], early[1][3]);
  ExpectRefused(early, "wave 0 of its cluster still waits for its backward");
  std::vector<Program> own_c = right;
  own_c[1].insert(own_c[1].begin() + 3, Of(kPrefixBackward));
  ExpectRefused(own_c, "that one runs Phase C");
  std::vector<Program> own_a = right;
  own_a[1].insert(own_a[1].begin(), Of(kPrefixForward));
  ExpectRefused(own_a, "its cluster has a hot set already");
  std::vector<Program> c_first = right;
  std::swap(c_first[0][4], c_first[0][5]);
  ExpectRefused(c_first, "its cluster has no hot set now");
  std::vector<Program> before_a = right;
  std::swap(before_a[0][0], before_a[0][1]);
  ExpectRefused(before_a, "its cluster has no hot set now");
  std::vector<Program> backward = Expand(OnePair(), true);
  backward[0].push_back(right[0][4]);
  backward[1].push_back(right[1][3]);
  ExpectRefused(backward, "a backward in a forward-only pass", /*forward_only=*/true);
}

TEST(SplitProgramTest, TwoSplitGroupsInAnotherOrderOnTwoRanksWaitForEver) {
  std::vector<v1::StepPlan> plans = OnePair();
  for (v1::StepPlan& plan : plans) {
    v1::Cluster second = plan.clusters(0);
    second.set_prefix_groups(0, 3);
    *plan.add_clusters() = second;
  }
  EXPECT_TRUE(CheckPrograms(Expand(plans, false), false).ok());
  plans[1].mutable_clusters()->SwapElements(0, 1);
  ExpectRefused(Expand(plans, false), "the ranks wait for each other for ever");
}

struct WrongPlan {
  std::string edit;  // text format, merged into the cluster of rank 0 (owner) or 1 (helper)
  size_t rank;
  std::string message;
};

TEST(SplitGroupsTest, APlanThatSplitsAsNoneIsSplitIsRefusedByItsField) {
  const std::vector<WrongPlan> cases = {
      {"helper_ranks: 2", 0, "cluster 0: helper_ranks is 2: there are 2 copies of the model"},
      {"helper_ranks: 4294967295", 0, "helper_ranks is 4294967295: there are 2 copies of the model"},
      {"helper_ranks: 0", 0, "helper_ranks is 0: that is this rank's own copy"},
      {"helper_ranks: 1", 0, "helper_ranks has 1 after 1: they ascend"},
      {"owner_rank: 1", 0, "it has an owner_rank and helper_ranks"},
      {"owner_rank: 1", 1, "owner_rank is 1: that is this rank's own copy"},
      {"owner_rank: 2", 1, "owner_rank is 2: there are 2 copies of the model"},
      {"dp_rank: 0", 1, "dp_rank is 0: this rank is of copy 1"},
      {"prefix_groups: 3", 0, "prefix_groups has 2: a split group has clusters of its own"},
      {"waves { members { group: 3 } }", 0, "a wave has group 3: it is group 2's"},
      {"waves { members { group: 2 rollout: 1 } }", 1, "its waves have rollout 1 twice"},
      {"prefix_policy: S0", 1, "prefix_policy is S0: a helper has no tape"},
      {"prefix_block_rows: 4", 1, "prefix_block_rows is 4"},
      {"offload_prefix: true", 1, "offload_prefix is set"},
  };
  for (const WrongPlan& wrong : cases) {
    v1::StepPlan plan = OnePair()[wrong.rank];
    v1::Cluster edit;
    ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(wrong.edit, &edit)) << wrong.edit;
    plan.mutable_clusters(0)->MergeFrom(edit);
    if (wrong.edit == "dp_rank: 0") plan.mutable_clusters(0)->set_dp_rank(0);  // a merge leaves out what is zero
    const absl::Status status = CheckSplitGroups(plan, SizesOfRank(static_cast<int>(wrong.rank), 2));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << wrong.edit;
    EXPECT_NE(status.message().find(wrong.message), std::string::npos) << wrong.edit << ": " << status;
  }
  for (const v1::StepPlan& plan : OnePair()) {
    EXPECT_TRUE(CheckSplitGroups(plan, SizesOfRank(static_cast<int>(plan.clusters(0).dp_rank()), 2)).ok());
  }
}

TEST(SplitGroupsTest, AGroupIsHereOnceAndHasAPrefix) {
  v1::StepPlan twice = OnePair()[0];
  *twice.add_clusters() = twice.clusters(0);
  EXPECT_NE(CheckSplitGroups(twice, SizesOfRank(0, 2)).message().find("cluster 1: group 2 is split and has another"),
            std::string::npos);
  v1::StepPlan idle = OnePair()[1];
  idle.mutable_clusters(0)->clear_waves();
  EXPECT_NE(CheckSplitGroups(idle, SizesOfRank(1, 2)).message().find("it has no waves"), std::string::npos);
  RankSizes sizes = SizesOfRank(0, 2);
  sizes.prefix_rows = {10, 20, 0};
  EXPECT_NE(CheckSplitGroups(OnePair()[0], sizes).message().find("group 2: not in the payload, or without a prefix"),
            std::string::npos);
  sizes.prefix_rows = {10, 20};
  EXPECT_NE(CheckSplitGroups(OnePair()[0], sizes).message().find("not in the payload"), std::string::npos);
}

// The rest of such a plan can still be walked.
TEST(SplitGroupsTest, AnExchangeWithNobodyIsLeftOut) {
  v1::StepPlan plan = OnePair()[0];
  plan.mutable_clusters(0)->add_helper_ranks(0);
  plan.mutable_clusters(0)->add_helper_ranks(7);
  const Program program = ExpandStep(plan, false, SizesOfRank(0, 2));
  EXPECT_EQ(
      std::count_if(program.begin(), program.end(), [](const Operation& o) { return o.part != PrefixPart::kNone; }), 2);
}

}  // namespace
}  // namespace stemma::worker
