#include "server/planner/memory_chooser.h"

#include <optional>
#include <utility>

#include "server/planner/cluster_ways.h"

namespace stemma::server {

std::shared_ptr<const MemoryChoice> MemoryChooser::Choose(const ClusterShape& cluster) {
  const auto [known, is_new] = known_.try_emplace(cluster);
  if (!is_new) return known->second;
  std::optional<MemoryChoice> fastest = FastestOf(options_, cluster);
  for (std::optional<MemoryOptions> fewer = WithFewerRounds(options_); fewer && !fastest;
       fewer = WithFewerRounds(*fewer)) {
    fastest = FastestOf(*fewer, cluster);
    if (fastest) fastest->cheapest = false;
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

std::optional<MemoryChoice> MemoryChooser::FastestOf(const MemoryOptions& options, const ClusterShape& cluster) {
  ClusterWays ways(options, cluster);
  std::optional<MemoryChoice> fastest = ways.Fastest();
  counts_.ways += ways.ways_evaluated();
  counts_.waves += ways.waves_priced();
  return fastest;
}

}  // namespace stemma::server
