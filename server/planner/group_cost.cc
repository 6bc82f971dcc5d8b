#include "server/planner/group_cost.h"

#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace stemma::server {
namespace {

// What one suffix costs without merge, recomputation and waves of its own, where ranks share them evenly.
double PlainSuffixSeconds(const MemoryOptions& options, const PackingGroup& packing) {
  const ClusterShape cluster = GroupShape(packing, /*reuse=*/true);
  Work work = options.forward_only ? ForwardClusterWork(options.shape, cluster, 0).suffix
                                   : ClusterWork(options.shape, cluster, {}, v1::S0, 0).suffix;
  work[kMerge] = 0;
  const auto members = static_cast<int64_t>(packing.members.size());
  return Seconds(work, options.rates) / static_cast<double>(options.shape.cp * members);
}

std::string Compared(double reuse, double dense) {
  const double saved = 100 * (1 - reuse / dense);
  if (saved > 0) return absl::StrFormat("reuse: saves %.0f%% of the dense seconds", saved);
  return absl::StrFormat("dense: reuse would take %.0f%% longer", -saved);
}

}  // namespace

v1::GroupCost GroupCostOf(MemoryChooser& chooser, const PackingGroup& packing) {
  v1::GroupCost cost;
  cost.set_uid(packing.uid);
  cost.set_rollouts(static_cast<uint32_t>(packing.members.size()));
  cost.set_reuse(packing.reuse);
  const std::shared_ptr<const MemoryChoice> reuse = chooser.Choose(GroupShape(packing, /*reuse=*/true));
  const std::shared_ptr<const MemoryChoice> dense = chooser.Choose(GroupShape(packing, /*reuse=*/false));
  if (reuse) cost.set_seconds_reuse(reuse->seconds.total());
  if (dense) cost.set_seconds_dense(dense->seconds.total());
  if (!reuse || !dense) return cost;
  const double n = static_cast<double>(packing.members.size());
  const double trajectory = cost.seconds_dense() / n;
  const PredictedSeconds& seconds = reuse->seconds;
  cost.set_rho((seconds.prefix_forward + seconds.prefix_backward) / trajectory);
  cost.set_eta(PlainSuffixSeconds(chooser.options(), packing) / trajectory);
  cost.set_epsilon(seconds.suffix / n / trajectory - cost.eta());
  cost.set_speedup(cost.seconds_dense() / cost.seconds_reuse());
  return cost;
}

PlacementGroup PlacementGroupOf(MemoryChooser& chooser, const PackingGroup& packing) {
  if (packing.members.empty()) return {};
  const std::shared_ptr<const MemoryChoice> choice = chooser.Choose(GroupShape(packing, packing.reuse));
  if (!choice) return {};
  const PredictedSeconds& seconds = choice->seconds;
  return {.prefix_s = seconds.prefix_forward + seconds.prefix_backward, .suffixes_s = seconds.suffix};
}

std::string ChooseReuse(MemoryChooser& chooser, v1::Schedule schedule, double flops_saved, PackingGroup& packing) {
  packing.reuse = false;
  if (packing.prefix_rows == 0) return "dense: a prompt of one token has no prefix";
  if (schedule == v1::DENSE) return "dense: asked for";
  if (schedule == v1::REUSE) {
    packing.reuse = true;
    return absl::StrFormat("reuse: asked for, saves %.1f%% of the FLOPs", 100 * flops_saved);
  }
  const std::shared_ptr<const MemoryChoice> reuse = chooser.Choose(GroupShape(packing, /*reuse=*/true));
  const std::shared_ptr<const MemoryChoice> dense = chooser.Choose(GroupShape(packing, /*reuse=*/false));
  if (!reuse && dense) return "dense: reuse does not fit the budget";
  packing.reuse = !dense || reuse->seconds.total() < dense->seconds.total();
  if (!dense) return "reuse: a whole trajectory does not fit the budget";
  if (!packing.reuse && packing.members.size() == 1) return "dense: one rollout shares nothing";
  return Compared(reuse->seconds.total(), dense->seconds.total());
}

std::optional<std::string> ReuseToShare(MemoryChooser& chooser, PackingGroup& packing) {
  if (packing.prefix_rows == 0) return std::nullopt;
  const std::shared_ptr<const MemoryChoice> reuse = chooser.Choose(GroupShape(packing, /*reuse=*/true));
  const std::shared_ptr<const MemoryChoice> dense = chooser.Choose(GroupShape(packing, /*reuse=*/false));
  if (!reuse) return std::nullopt;
  packing.reuse = true;
  if (!dense) return "reuse: a whole trajectory does not fit the budget";
  const double longer = 100 * (reuse->seconds.total() / dense->seconds.total() - 1);
  return absl::StrFormat("reuse: ranks share it, which dense would not let them; alone it takes %.0f%% longer", longer);
}

}  // namespace stemma::server
