// How much is looked at for many clusters, by counts; and that looking at little changes no answer.
#include "server/planner/memory_chooser.h"

#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "server/planner/cluster_ways.h"
#include "tests/server/planner/cluster_shapes.h"
#include "tests/server/planner/drawn_clusters.h"

namespace stemma::server {
namespace {

using testing::BenchMemory;
using testing::DrawCluster;
using testing::kMiB;
using testing::OneGroup;

std::vector<ClusterShape> DrawClusters(int count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<ClusterShape> clusters;
  for (int i = 0; i < count; ++i) clusters.push_back(DrawCluster(1 + i % 3, i % 4 != 0, random));
  return clusters;
}

int64_t Members(const std::vector<ClusterShape>& clusters) {
  int64_t members = 0;
  for (const ClusterShape& cluster : clusters) members += static_cast<int64_t>(cluster.members.size());
  return members;
}

TEST(MemoryChooserTest, AShapeIsLookedAtOnceHoweverManyGroupsHaveIt) {
  MemoryChooser chooser(BenchMemory(150 * kMiB));
  std::vector<std::shared_ptr<const MemoryChoice>> choices;
  for (int i = 0; i < 1000; ++i) choices.push_back(chooser.Choose(OneGroup(1023, 256 + i % 2, 8)));
  EXPECT_EQ(chooser.counts().shapes, 2);
  EXPECT_EQ(choices[0], choices[998]);
  EXPECT_NE(choices[0], choices[1]);
}

TEST(MemoryChooserTest, AShapeThatDoesNotFitIsRememberedToo) {
  MemoryChooser chooser(BenchMemory(kMiB));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(chooser.Choose(OneGroup(1023, 256, 8)), nullptr);
  EXPECT_EQ(chooser.counts().shapes, 1);
}

TEST(MemoryChooserTest, WhereBytesAreNoLimitOneWayIsLookedAtAndNoWaveTwice) {
  MemoryChooser chooser(BenchMemory(int64_t{1} << 50));
  const std::vector<ClusterShape> clusters = DrawClusters(200, 1);
  int64_t waves = 0;
  for (const ClusterShape& cluster : clusters)
    waves += static_cast<int64_t>(chooser.Choose(cluster)->wave_sizes.size());
  EXPECT_EQ(chooser.counts().ways, chooser.counts().shapes);
  EXPECT_LE(chooser.counts().waves, waves);
}

// Few of the hundreds of ways are evaluated, and their waves are priced a few times for each member.
TEST(MemoryChooserTest, UnderATightBudgetFewWaysAreLookedAt) {
  int64_t shapes = 0, ways = 0, waves = 0, members = 0, allowed = 0, chosen = 0;
  for (const int64_t budget_mib : {60, 100, 160, 250, 400}) {
    const MemoryOptions options = BenchMemory(budget_mib * kMiB);
    MemoryChooser chooser(options);
    const std::vector<ClusterShape> clusters = DrawClusters(100, static_cast<uint64_t>(budget_mib));
    for (const ClusterShape& cluster : clusters) {
      allowed += static_cast<int64_t>(ClusterWays(options, cluster).All().size());
      const std::shared_ptr<const MemoryChoice> choice = chooser.Choose(cluster);
      chosen += choice != nullptr && !choice->cheapest ? 1 : 0;
    }
    shapes += chooser.counts().shapes;
    ways += chooser.counts().ways;
    waves += chooser.counts().waves;
    members += Members(clusters);
  }
  EXPECT_GT(chosen, shapes / 3) << "the budgets must be tight";
  EXPECT_GT(allowed, 100 * shapes) << "and the ways many";
  EXPECT_LE(ways, 6 * shapes);
  EXPECT_LE(waves, 4 * members);
}

// Against every way, each evaluated by itself.
TEST(MemoryChooserTest, TheChoiceIsTheFastestOfAllWaysThatFit) {
  int tight = 0;
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const ClusterShape cluster = DrawCluster(1 + static_cast<int>(seed % 3), seed % 4 != 0, random);
    MemoryOptions options = BenchMemory(testing::DrawSize(20, 1000, random) * kMiB);
    if (seed % 3 == 0) options.host_bytes = testing::DrawSize(1, 500, random) * kMiB;
    options.rates.copies_overlap = seed % 5 == 0;
    double best = std::numeric_limits<double>::infinity();
    for (const MemoryAlternative& way : ClusterWays(options, cluster).All()) {
      if (const auto choice = ClusterWays(options, cluster).Evaluate(way))
        best = std::min(best, choice->seconds.total());
    }
    MemoryChooser chooser(options);
    const std::shared_ptr<const MemoryChoice> choice = chooser.Choose(cluster);
    ASSERT_EQ(choice != nullptr, std::isfinite(best));
    if (choice == nullptr) continue;
    EXPECT_EQ(choice->seconds.total(), best);
    const auto alone = ClusterWays(options, cluster).Evaluate(choice->way);
    ASSERT_TRUE(alone);
    EXPECT_EQ(choice->wave_sizes, alone->wave_sizes);
    EXPECT_EQ(choice->peak_bytes, alone->peak_bytes);
    EXPECT_EQ(choice->headroom_bytes, alone->headroom_bytes);
    tight += choice->cheapest ? 0 : 1;
  }
  EXPECT_GT(tight, 250);
}

}  // namespace
}  // namespace stemma::server
