#include "common/cost/wave_rounds.h"

#include <algorithm>
#include <cstddef>

namespace stemma {

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
