#include "common/cost/cluster_facts.h"

#include <algorithm>
#include <cstddef>

#include "common/base/round_up.h"

namespace stemma {

bool IsSplit(const v1::Cluster& cluster) { return cluster.helper_ranks_size() > 0 || cluster.has_owner_rank(); }

bool RunsOwnPrefix(const v1::Cluster& cluster) { return cluster.prefix_groups_size() > 0 && !cluster.has_owner_rank(); }

int NumPrefixBlocks(const v1::Cluster& cluster, std::span<const int64_t> prefix_rows) {
  if (!RunsOwnPrefix(cluster)) return 0;
  if (cluster.prefix_block_rows() == 0) return 1;
  int64_t rows = 0;
  for (const uint32_t group : cluster.prefix_groups()) {
    if (group < prefix_rows.size()) rows += prefix_rows[group];
  }
  return static_cast<int>(DivideUp<int64_t>(rows, cluster.prefix_block_rows()));
}

std::vector<std::vector<int>> WavesByRank(const v1::Cluster& cluster, int ranks) {
  std::vector<std::vector<int>> waves(static_cast<size_t>(ranks));
  for (int w = 0; w < cluster.waves_size(); ++w) {
    const v1::Wave& wave = cluster.waves(w);
    if (wave.cut_rows()) {
      for (std::vector<int>& of_rank : waves) of_rank.push_back(w);
    } else if (wave.cp_rank() < waves.size()) {
      waves[wave.cp_rank()].push_back(w);
    }
  }
  return waves;
}

int RoundsOfWaves(const v1::Cluster& cluster, int ranks) {
  size_t most = 0;
  for (const std::vector<int>& of_rank : WavesByRank(cluster, ranks)) most = std::max(most, of_rank.size());
  return static_cast<int>(most);
}

}  // namespace stemma
