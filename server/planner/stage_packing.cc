#include "server/planner/stage_packing.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>

#include "common/base/round_up.h"
#include "common/base/status_macros.h"
#include "server/planner/stage_plan.h"

namespace stemma::server {
namespace {

class StagePacker {
 public:
  StagePacker(MemoryChooser& chooser, const std::vector<PlannerGroup>& groups, const std::vector<PackingGroup>& packing,
              const std::function<void(v1::Cluster&)>& mark)
      : chooser_(chooser), options_(chooser.options()), groups_(groups), packing_(packing), mark_(mark) {
    for (const PackingGroup& group : packing) {
      for (const PackingMember& member : group.members) rows_ += member.rows + (group.reuse ? 0 : group.prefix_rows);
      members_ += static_cast<int64_t>(group.members.size());
    }
  }

  absl::StatusOr<StagedClusters> Run() {
    ASSIGN_OR_RETURN(Candidate by_memory, Pack(chooser_));
    if (by_memory.clusters.empty()) return StagedClusters{};
    const double least_s = by_memory.least_s;
    StagedClusters staged = Ordered(std::move(by_memory));
    const double idle_s = BubbleSeconds(staged.orders), end_s = staged.orders.end_s;
    if (idle_s < kIdleShareWorthTries * end_s) return staged;
    // Where stages wait for memory the bound does not tell sizes apart, and a step may be large: one is tried.
    const bool memory_is_waited_for = least_s - (end_s - idle_s) < kIdleShareWorthTries * end_s;
    const int tries = memory_is_waited_for ? 1 : std::numeric_limits<int>::max();
    const auto joins_groups = [](const PackedCluster& packed) { return packed.cluster.prefix_groups_size() > 1; };
    const bool groups_are_joined = std::any_of(staged.clusters.begin(), staged.clusters.end(), joins_groups);
    std::optional<Candidate> best;
    if (!waves_are_forced()) TrySmaller(/*clusters=*/false, tries, best);
    if (groups_are_joined && !memory_is_waited_for) TrySmaller(/*clusters=*/true, tries, best);
    if (!best || best->least_s >= end_s) return staged;
    StagedClusters smaller = Ordered(*std::move(best));
    return smaller.orders.end_s < end_s ? std::move(smaller) : std::move(staged);
  }

 private:
  struct Candidate {
    std::vector<PackedCluster> clusters;
    StageQuestion question;
    double least_s = 0;
  };

  bool waves_are_forced() const { return options_.layout == v1::ONE_BY_ONE || options_.wave_suffixes > 0; }

  absl::StatusOr<Candidate> Pack(MemoryChooser& chooser) const {
    Candidate candidate;
    ASSIGN_OR_RETURN(candidate.clusters, PackClusters(chooser, packing_));
    std::vector<const v1::Cluster*> clusters;
    for (PackedCluster& packed : candidate.clusters) {
      if (mark_) mark_(packed.cluster);
      clusters.push_back(&packed.cluster);
    }
    candidate.question = StagesOf(options_, groups_, clusters);
    candidate.least_s = LeastStageSeconds(candidate.question);
    return candidate;
  }

  StagedClusters Ordered(Candidate candidate) const {
    return {.clusters = std::move(candidate.clusters),
            .orders = options_.forward_only ? OrderForwards(candidate.question) : OrderStages(candidate.question)};
  }

  // Tries waves of half the step's rows, a quarter, and so on, and with `clusters` prefixes likewise, but no more than
  // `tries` sizes. A further wave always costs the same and gains less and less, so the first try that is worse than
  // the one before it is the last.
  void TrySmaller(bool clusters, int tries, std::optional<Candidate>& best) const {
    double before_s = std::numeric_limits<double>::infinity();
    for (int64_t waves = 2; waves < 2 * members_ && tries > 0; waves *= 2) {
      const int64_t wave_rows = DivideUp(rows_, waves * options_.shape.cp);
      if (wave_rows >= options_.wave_rows) continue;
      --tries;
      MemoryOptions smaller = options_;
      if (!waves_are_forced()) smaller.wave_rows = wave_rows;
      if (clusters) smaller.cluster_prefix_rows = std::min(DivideUp(rows_, waves), options_.cluster_prefix_rows);
      MemoryChooser chooser(std::move(smaller));
      absl::StatusOr<Candidate> candidate = Pack(chooser);
      // What is cut further needs no more bytes, so planning was stopped, as the next packing will say.
      if (!candidate.ok() || candidate->least_s > before_s) return;
      before_s = candidate->least_s;
      if (!best || before_s < best->least_s) best = *std::move(candidate);
    }
  }

  MemoryChooser& chooser_;  // by memory alone
  const MemoryOptions& options_;
  const std::vector<PlannerGroup>& groups_;
  const std::vector<PackingGroup>& packing_;
  const std::function<void(v1::Cluster&)>& mark_;
  int64_t rows_ = 0, members_ = 0;  // of all waves
};

}  // namespace

absl::StatusOr<StagedClusters> PackForStages(MemoryChooser& chooser, const std::vector<PlannerGroup>& groups,
                                             const std::vector<PackingGroup>& packing,
                                             const std::function<void(v1::Cluster&)>& mark) {
  return StagePacker(chooser, groups, packing, mark).Run();
}

}  // namespace stemma::server
