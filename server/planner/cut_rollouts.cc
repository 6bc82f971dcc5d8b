#include "server/planner/cut_rollouts.h"

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "common/cost/context_rows.h"
#include "server/planner/cluster_ways.h"
#include "server/planner/member_dealing.h"

namespace stemma::server {
namespace {

// Ranks that differ by less are even.
constexpr double kEvenEnough = 1.05;
// More cuts are not looked for where ranks stay uneven: with so many of the longest cut the others are short.
constexpr size_t kCutsForEachRank = 2;

// Tells whether a rollout that is whole could be cut.
bool CanBeCut(const MemoryOptions& options, const ClusterShape& cluster, const MemberShape& member) {
  const int64_t cp = options.shape.cp;
  const bool is_suffix = !member.dense || member.prefix_rows == 0;
  const bool is_whole = !member.is_cut(), is_alone = cluster.prefix_rows.size() <= 1;
  return cp > 1 && is_whole && is_alone && is_suffix && member.rows >= FewestCutRows(cp);
}

// Returns the lengths of the rollouts that can be cut, the longest first, each once.
std::vector<int64_t> Lengths(const MemoryOptions& options, const ClusterShape& cluster) {
  std::vector<int64_t> lengths;
  for (const MemberShape& member : cluster.members) {
    if (CanBeCut(options, cluster, member)) lengths.push_back(member.rows);
  }
  std::sort(lengths.begin(), lengths.end(), std::greater<>());
  lengths.erase(std::unique(lengths.begin(), lengths.end()), lengths.end());
  return lengths;
}

// Returns the cluster with all rollouts cut that can be and have so many rows, or more.
ClusterShape CutFrom(const MemoryOptions& options, const ClusterShape& cluster, int64_t rows) {
  ClusterShape cut = cluster;
  for (MemberShape& member : cut.members) {
    if (member.rows < rows || !CanBeCut(options, cluster, member)) continue;
    member.cut_ranks = static_cast<int32_t>(options.shape.cp);
  }
  return cut;
}

bool Fits(const MemoryOptions& options, const ClusterShape& cluster) {
  MemoryOptions one_round = options;
  one_round.rounds_in_flight = 1;
  return ClusterWays(one_round, cluster).FewestBytes().of_device_within_host <= options.budget_bytes;
}

}  // namespace

std::optional<ClusterShape> CutToFit(const MemoryOptions& options, const ClusterShape& cluster) {
  const std::vector<int64_t> lengths = Lengths(options, cluster);
  const auto fits_from = [&](int64_t rows) { return Fits(options, CutFrom(options, cluster, rows)); };
  if (lengths.empty() || !fits_from(lengths.back())) return std::nullopt;
  const auto first =
      std::partition_point(lengths.begin(), lengths.end() - 1, [&](int64_t rows) { return !fits_from(rows); });
  return CutFrom(options, cluster, *first);
}

std::optional<ClusterShape> CutToBalance(const MemoryOptions& options, const ClusterShape& cluster) {
  const ModelConfig& config = options.shape.config;
  const int64_t cp = options.shape.cp;
  std::vector<int64_t> lengths = Lengths(options, cluster);
  if (lengths.empty()) return std::nullopt;
  lengths.resize(std::min(lengths.size(), kCutsForEachRank * static_cast<size_t>(cp)));
  std::optional<ClusterShape> best;
  double imbalance = DealtImbalance(config, cluster.members, cp);
  for (const int64_t rows : lengths) {
    if (imbalance <= kEvenEnough) break;
    ClusterShape cut = CutFrom(options, cluster, rows);
    const double of_cut = DealtImbalance(config, cut.members, cp);
    if (of_cut >= imbalance) continue;
    imbalance = of_cut;
    best = std::move(cut);
  }
  return best;
}

ClusterShape WithAllCut(const MemoryOptions& options, const ClusterShape& cluster) {
  return CutFrom(options, cluster, /*rows=*/0);
}

}  // namespace stemma::server
