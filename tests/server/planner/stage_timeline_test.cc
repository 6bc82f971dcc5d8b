// When copies of several stages end a step in which they share groups. With one stage it is the timeline of copies that
// have no stages; with several the simulator says the same (tests/server/simulation). Cases are drawn; STEMMA_SEED
// draws others.
#include "server/planner/stage_timeline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "server/planner/split_timeline.h"
#include "tests/server/planner/drawn_stages.h"
#include "tests/testing/draw.h"
#include "tests/testing/namespaces.h"

namespace stemma::testing {
namespace {

using server::CopyPipeline;
using server::OrderForwards;
using server::OrderStages;
using server::RunCopies;
using server::RunTimeline;
using server::SharedGroup;
using server::StageExchange;
using server::WholeWork;

// Copies of one stage, and the same as RunTimeline has them.
struct OneStage {
  std::vector<CopyPipeline> copies;
  std::vector<SharedGroup> shared;
  WholeWork whole = WholeWork(0);
};

StageCluster DrawRounds(Draw& draw, double& seconds) {
  StageCluster cluster;
  for (int64_t r = draw.Between(1, 3); r > 0; --r) {
    const StageCost cost = {.forward_s = DrawSeconds(draw, 2), .backward_s = DrawSeconds(draw, 2)};
    cluster.rounds.push_back({cost});
    seconds += cost.forward_s + cost.backward_s;
  }
  return cluster;
}

OneStage DrawOneStage(Draw& draw) {
  OneStage drawn;
  const auto num_copies = static_cast<size_t>(draw.Between(2, 4));
  const auto num_shared = static_cast<size_t>(draw.Between(0, 3));
  drawn.copies.resize(num_copies);
  drawn.whole = WholeWork(num_copies);
  for (CopyPipeline& copy : drawn.copies) copy.parts.resize(num_shared);
  for (size_t place = 0; place <= num_shared; ++place) {
    for (size_t c = 0; c < num_copies; ++c) {
      if (draw.Chance(50)) continue;
      double seconds = 0;
      drawn.copies[c].question.clusters.push_back(DrawRounds(draw, seconds));
      drawn.whole.Add(c, place, seconds);
    }
    if (place == num_shared) break;
    std::vector<int32_t> ranks(num_copies);
    std::iota(ranks.begin(), ranks.end(), 0);
    for (size_t i = ranks.size() - 1; i > 0; --i)
      std::swap(ranks[i], ranks[static_cast<size_t>(draw.Between(0, static_cast<int64_t>(i)))]);
    ranks.resize(static_cast<size_t>(draw.Between(2, static_cast<int64_t>(num_copies))));
    std::sort(ranks.begin() + 1, ranks.end());
    SharedGroup& group = drawn.shared.emplace_back();
    group = {.ranks = ranks,
             .waves_s = std::vector<double>(ranks.size()),
             .forward_s = DrawSeconds(draw, 4),
             .backward_s = DrawSeconds(draw, 8),
             .send_s = DrawSeconds(draw, 1),
             .return_s = DrawSeconds(draw, 1)};
    for (size_t i = 0; i < ranks.size(); ++i) {
      CopyPipeline& copy = drawn.copies[static_cast<size_t>(ranks[i])];
      copy.parts[place] = copy.question.clusters.size();
      StageCluster part = DrawRounds(draw, group.waves_s[i]);
      part.stands_alone = true;
      part.prefixes = {i == 0 ? StageCost{.forward_s = group.forward_s, .backward_s = group.backward_s} : StageCost{}};
      copy.question.clusters.push_back(part);
    }
  }
  return drawn;
}

TEST(StageTimelineTest, OneStageIsTheTimelineOfCopiesWithoutStages) {
  for (uint32_t seed = FirstSeed(); seed < FirstSeed() + 300; ++seed) {
    SCOPED_TRACE("STEMMA_SEED " + std::to_string(seed));
    Draw draw(seed);
    OneStage drawn = DrawOneStage(draw);
    for (CopyPipeline& copy : drawn.copies) {
      if (!copy.question.clusters.empty()) copy.orders = OrderStages(copy.question);
    }
    // Seconds are multiples of a sixteenth: sums of them are exact.
    std::vector<StageExchange> exchanges;
    for (const SharedGroup& group : drawn.shared) {
      exchanges.push_back({.copies = group.ranks, .send_s = {group.send_s}, .return_s = {group.return_s}});
    }
    EXPECT_EQ(RunCopies(drawn.copies, exchanges), RunTimeline(drawn.shared, drawn.whole).finish_s);
  }
}

// A and C of two seconds and one round of one and two on each of two stages; exchanges of half a second.
TEST(StageTimelineTest, StagesExchangeBesideEachOther) {
  const StageCosts prefix(2, {.forward_s = 2, .backward_s = 2}), round(2, {.forward_s = 1, .backward_s = 2});
  std::vector<CopyPipeline> copies(2);
  for (size_t c = 0; c < 2; ++c) {
    StageCluster part = {.prefixes = c == 0 ? prefix : StageCosts(2), .rounds = {round}, .stands_alone = true};
    copies[c].question = {.stages = 2, .clusters = {part}};
    copies[c].orders = OrderStages(copies[c].question);
    copies[c].parts = {0};
  }
  StageExchange group = {.copies = {0, 1}, .send_s = {0.5, 0.5}, .return_s = {0.5, 0.5}};
  // The owner's stages send at 2 and 4. Stage 1 has A to 4, the exchange to 4.5, F to 5.5, B to 7.5, as the helper has;
  // gK/gV to 8, C to 10. Stage 0: B to 9.5, gK/gV to 10, C to 12.
  EXPECT_EQ(RunCopies(copies, {&group, 1}), (std::vector<double>{12, 10}));
  group.send_s = {1.5, 1.5};  // stage 0 is at its waves when stage 1 sends: one message later, not two
  EXPECT_EQ(RunCopies(copies, {&group, 1}), (std::vector<double>{13, 11}));
  for (CopyPipeline& copy : copies) copy.orders = OrderForwards(copy.question);
  group.send_s = {0.5, 0.5};
  group.returns = false;
  EXPECT_EQ(RunCopies(copies, {&group, 1}), (std::vector<double>{5.5, 5.5}));
}

TEST(StageTimelineDeathTest, StagesThatWaitForEachOtherAreABug) {
  const StageCosts prefix(1, {.forward_s = 1, .backward_s = 1}), round(1, {.forward_s = 1, .backward_s = 1});
  std::vector<CopyPipeline> copies(2);
  for (CopyPipeline& copy : copies) {
    const StageCluster part = {.prefixes = prefix, .rounds = {round}, .stands_alone = true};
    copy.question = {.stages = 1, .clusters = {part, part}};
    copy.orders = OrderStages(copy.question);
  }
  copies[0].parts = {0, 1};
  copies[1].parts = {1, 0};
  const std::vector<StageExchange> shared(2, {.copies = {0, 1}, .send_s = {0}, .return_s = {0}});
  EXPECT_DEATH(RunCopies(copies, shared), "wait for each other");
}

}  // namespace
}  // namespace stemma::testing
