// Plans one optimizer step, or one pass without backward, whose groups have their ranks: packs what each rank has into
// clusters, puts the operations of pipeline stages in order, and reports. Pure. Used by server/planner/planner.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/planner/group_plan.h"
#include "server/planner/memory_chooser.h"
#include "server/planner/planner.h"
#include "server/planner/ranks_of_step.h"
#include "server/planner/stage_packing.h"
#include "stemma/v1/plan.pb.h"

namespace stemma::server {

struct PlannedStep {
  v1::StepPlan step;
  v1::StepReport report;
  std::vector<PhaseWork> work;  // by copy of the model
};

class StepPlanner {
 public:
  // All outlive it; the groups are known when it is first asked. `chooser`: of what it plans, steps or passes.
  StepPlanner(const PlannerModel& model, const PlannerRequest& request, const std::vector<GroupPlan>& groups,
              MemoryChooser& chooser)
      : model_(model), request_(request), groups_(groups), chooser_(chooser), options_(chooser.options()) {}

  // Plans a mini-batch, given by its groups' indices. Errors: see MakePlan.
  absl::StatusOr<PlannedStep> Plan(const std::vector<uint32_t>& batch, const SplitPlacement& placement);

  // Plans the pass over log-probs before `steps`, which compute each group once: their clusters, as they are computed
  // there, or packed anew where that does not fit beside what the pass holds (server/planner/log_prob_pass.h).
  // `placement`: of all groups, where the steps have them; its splits are in the order in which the steps have them.
  // Errors: see MakePlan.
  absl::StatusOr<PlannedStep> PlanPassBefore(std::span<const PlannedStep> steps, const SplitPlacement& placement);

  // Returns what the slowest copy takes for a placement, all exchanges included; infinity: it does not fit.
  double Seconds(const std::vector<uint32_t>& batch, const SplitPlacement& placement);

 private:
  // One step while ranks are added to it.
  struct InWork {
    const std::vector<uint32_t>& batch;
    const SplitPlacement& placement;
    v1::StepPlan& step;
    v1::StepReport& report;
    RanksOfStep& ranks;
  };
  using AddRank = std::function<absl::Status(size_t rank, const InWork& work)>;

  absl::StatusOr<PlannedStep> PlanRanks(const std::vector<uint32_t>& batch, const SplitPlacement& placement,
                                        const AddRank& add_rank);
  std::vector<int64_t> SplitRows(const std::vector<uint32_t>& batch, const SplitPlacement& placement) const;
  void CountGroups(const std::vector<uint32_t>& batch, v1::StepPlan& step, v1::StepReport& report) const;
  absl::Status AddRankOfStep(size_t rank, const InWork& work);
  absl::Status AddRankOfPass(size_t rank, std::span<const PlannedStep> steps, const InWork& work);
  absl::Status AddPart(size_t rank, size_t place, int first, const InWork& work);
  absl::StatusOr<StagedClusters> Pack(const std::vector<PackingGroup>& groups,
                                      const std::function<void(v1::Cluster&)>& mark) const;
  absl::StatusOr<std::vector<PackedCluster>> PackForPass(const v1::Cluster& of_step) const;
  v1::PhaseSeconds AddClusters(size_t rank, std::vector<PackedCluster> clusters, const InWork& work);
  void SetPart(size_t rank, size_t place, int first, const v1::PhaseSeconds& seconds, const InWork& work) const;
  void OrderStagesOf(size_t rank, int first, std::optional<StageOrders> orders, const InWork& work) const;
  void DescribeRanks(const InWork& work) const;
  void Describe(const v1::Cluster& cluster, v1::ClusterReport& report);
  const v1::GroupCost& CostOf(uint32_t g);

  const PlannerModel& model_;
  const PlannerRequest& request_;
  const std::vector<GroupPlan>& groups_;
  MemoryChooser& chooser_;
  const MemoryOptions& options_;                     // the chooser's
  std::vector<std::optional<v1::GroupCost>> costs_;  // of each group, the same in every epoch; made when asked for
};

}  // namespace stemma::server
