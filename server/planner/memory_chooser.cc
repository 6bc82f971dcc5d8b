#include "server/planner/memory_chooser.h"

#include <optional>
#include <utility>

#include "server/planner/cluster_ways.h"
#include "server/planner/cut_rollouts.h"

namespace stemma::server {
namespace {

// Where a cluster fits as it is, cutting rollouts must save so much: what they exchange is not known to a percent.
constexpr double kWorthCutting = 0.02;

void TakeIfFaster(std::optional<MemoryChoice> cut, MemoryChoice& fastest) {
  if (!cut || cut->seconds.total() >= (1 - kWorthCutting) * fastest.seconds.total()) return;
  fastest = *std::move(cut);
}

}  // namespace

std::shared_ptr<const MemoryChoice> MemoryChooser::Choose(const ClusterShape& cluster) {
  const auto [known, is_new] = known_.try_emplace(cluster);
  if (!is_new) return known->second;
  std::optional<MemoryChoice> fastest = FastestOfRounds(cluster);
  std::optional<ClusterShape> cut;
  if (!fastest) {
    cut = CutToFit(options_, cluster);
    if (cut) fastest = FastestOfRounds(*cut);
    if (fastest) fastest->cheapest = false;
  }
  if (fastest) {
    if (const auto even = CutToBalance(options_, cut ? *cut : cluster)) TakeIfFaster(FastestOfRounds(*even), *fastest);
  }
  ++counts_.shapes;
  std::shared_ptr<const MemoryChoice> choice;
  if (fastest) choice = std::make_shared<const MemoryChoice>(*std::move(fastest));
  known->second = choice;
  members_ += static_cast<int64_t>(cluster.members.size());
  if (members_ > kMembersMax) {
    known_.clear();
    members_ = 0;
  }
  return choice;
}

std::optional<MemoryChoice> MemoryChooser::FastestOfRounds(const ClusterShape& cluster) {
  std::optional<MemoryChoice> fastest = FastestOf(options_, cluster);
  for (std::optional<MemoryOptions> fewer = WithFewerRounds(options_); fewer && !fastest;
       fewer = WithFewerRounds(*fewer)) {
    fastest = FastestOf(*fewer, cluster);
    if (fastest) fastest->cheapest = false;
  }
  return fastest;
}

std::optional<MemoryChoice> MemoryChooser::FastestOf(const MemoryOptions& options, const ClusterShape& cluster) {
  ClusterWays ways(options, cluster);
  std::optional<MemoryChoice> fastest = ways.Fastest();
  counts_.ways += ways.ways_evaluated();
  counts_.waves += ways.waves_priced();
  return fastest;
}

}  // namespace stemma::server
