#include "server/planner/memory_chooser.h"

#include <optional>
#include <utility>

#include "server/planner/cluster_ways.h"

namespace stemma::server {

std::shared_ptr<const MemoryChoice> MemoryChooser::Choose(const ClusterShape& cluster) {
  const auto [known, is_new] = known_.try_emplace(cluster);
  if (!is_new) return known->second;
  ClusterWays ways(options_, cluster);
  std::optional<MemoryChoice> fastest = ways.Fastest();
  ++counts_.shapes;
  counts_.ways += ways.ways_evaluated();
  counts_.waves += ways.waves_priced();
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

}  // namespace stemma::server
