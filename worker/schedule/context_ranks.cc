#include "worker/schedule/context_ranks.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "common/cost/cluster_facts.h"

namespace stemma::worker {
namespace {

// The checks return what is wrong; empty: nothing.

std::string WaveProblem(const v1::Wave& wave, const RankSizes& sizes) {
  if (wave.cp_rank() < static_cast<uint32_t>(sizes.cp_ranks)) return "";
  return absl::StrCat("cp_rank is ", wave.cp_rank(), ": there are ", sizes.cp_ranks, " ranks");
}

// No rank runs another wave before those that all of them run together.
std::string CutProblem(const v1::Cluster& cluster, int index, const RankSizes& sizes) {
  const v1::Wave& wave = cluster.waves(index);
  if (!wave.cut_rows()) return "";
  if (sizes.cp_ranks == 1) return "cut_rows is set: there is one rank";
  if (wave.cp_rank() != 0) return absl::StrCat("cut_rows is set and cp_rank is ", wave.cp_rank(), ": it is 0");
  return index > 0 && !cluster.waves(index - 1).cut_rows() ? "cut_rows is set after a wave whose rows are not cut" : "";
}

std::string PrefixProblem(const v1::Cluster& cluster, const RankSizes& sizes) {
  if (sizes.cp_ranks == 1) return "";
  for (const uint32_t group : cluster.prefix_groups()) {
    if (group < sizes.prefix_rows.size() && sizes.prefix_rows[group] > 0) continue;
    return absl::StrCat("prefix_groups has group ", group, ": not in the payload, or without a prefix");
  }
  if (cluster.regather_prefix() && IsSplit(cluster)) {
    return "regather_prefix is set: the ranks of a split group hold all K/V";
  }
  return "";
}

}  // namespace

absl::Status CheckContextRanks(const v1::StepPlan& step, const RankSizes& sizes) {
  for (int c = 0; c < step.clusters_size(); ++c) {
    const v1::Cluster& cluster = step.clusters(c);
    if (const std::string problem = PrefixProblem(cluster, sizes); !problem.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("cluster ", c, ": ", problem));
    }
    for (int w = 0; w < cluster.waves_size(); ++w) {
      std::string problem = WaveProblem(cluster.waves(w), sizes);
      if (problem.empty()) problem = CutProblem(cluster, w, sizes);
      if (!problem.empty()) return absl::InvalidArgumentError(absl::StrCat("cluster ", c, ", wave ", w, ": ", problem));
    }
  }
  return absl::OkStatus();
}

}  // namespace stemma::worker
