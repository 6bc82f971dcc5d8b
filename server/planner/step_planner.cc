#include "server/planner/step_planner.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/cost/cluster_facts.h"
#include "common/cost/flops.h"
#include "common/cost/plan_seconds.h"
#include "glog/logging.h"
#include "server/planner/group_cost.h"
#include "server/planner/log_prob_pass.h"
#include "server/planner/memory_division.h"
#include "server/planner/plan_report.h"
#include "server/planner/prefix_rollouts.h"
#include "server/planner/sharded_step.h"
#include "server/planner/split_cost.h"
#include "server/planner/stage_plan.h"
#include "server/planner/wave_packing.h"

namespace stemma::server {
namespace {

double Count(bool forward_only, const Flops& flops) { return forward_only ? flops.forward : flops.total(); }

// Adds what the rank has of steps that compute the same.
void AddGroupsOf(const v1::StepReport& step, size_t rank, v1::RankReport& report) {
  if (step.ranks().empty()) return;  // one rank, of which there is no report
  const v1::RankReport& of_step = step.ranks(static_cast<int>(rank));
  report.set_groups(report.groups() + of_step.groups());
  report.set_parts(report.parts() + of_step.parts());
  report.set_tokens_computed(report.tokens_computed() + of_step.tokens_computed());
}

// Returns the place of a split group, where the batch is all groups.
size_t PlaceOfSplit(size_t group, const SplitPlacement& placement) {
  const auto is_its = [&](const GroupSplit& split) { return split.group == group; };
  const auto split = std::find_if(placement.splits.begin(), placement.splits.end(), is_its);
  CHECK(split != placement.splits.end()) << "group " << group << " is split in its step";
  return static_cast<size_t>(split - placement.splits.begin());
}

}  // namespace

absl::StatusOr<PlannedStep> StepPlanner::Plan(const std::vector<uint32_t>& batch, const SplitPlacement& placement) {
  return PlanRanks(batch, placement, [&](size_t rank, const InWork& work) { return AddRankOfStep(rank, work); });
}

absl::StatusOr<PlannedStep> StepPlanner::PlanPassBefore(std::span<const PlannedStep> steps,
                                                        const SplitPlacement& placement) {
  std::vector<uint32_t> all(groups_.size());
  std::iota(all.begin(), all.end(), 0u);
  return PlanRanks(all, placement, [&](size_t rank, const InWork& work) { return AddRankOfPass(rank, steps, work); });
}

double StepPlanner::Seconds(const std::vector<uint32_t>& batch, const SplitPlacement& placement) {
  v1::StepPlan step;
  v1::StepReport report;
  RanksOfStep ranks(placement, SplitRows(batch, placement), options_);
  const InWork work = {batch, placement, step, report, ranks};
  absl::Status status;
  for (size_t rank = 0; status.ok() && rank < placement.whole.size(); ++rank) status = AddRankOfStep(rank, work);
  if (!status.ok()) return std::numeric_limits<double>::infinity();
  return ranks.Run().max_s();
}

absl::StatusOr<PlannedStep> StepPlanner::PlanRanks(const std::vector<uint32_t>& batch, const SplitPlacement& placement,
                                                   const AddRank& add_rank) {
  PlannedStep planned;
  auto& [step, report, computed] = planned;
  CountGroups(batch, step, report);
  RanksOfStep ranks(placement, SplitRows(batch, placement), options_);
  const InWork work = {batch, placement, step, report, ranks};
  for (size_t rank = 0; rank < placement.whole.size(); ++rank) RETURN_IF_ERROR(add_rank(rank, work));
  for (const v1::RankReport& rank : ranks.reports) MaxSeconds(rank.seconds(), *report.mutable_seconds());
  if (!options_.forward_only && step.clusters_size() > 0) {
    report.mutable_seconds()->set_apply(server::Seconds(ApplyWork(model_.config), model_.rates));
  }
  if (ranks.reports.size() > 1 || !options_.stages.empty()) DescribeRanks(work);
  SetPrefixRollouts(step);
  if (ShardsParameters(model_.run)) ShardStep(model_, options_, request_.groups, step, report);
  computed = std::move(ranks.work);
  return planned;
}

// Returns the prefix rows of each group that is split.
std::vector<int64_t> StepPlanner::SplitRows(const std::vector<uint32_t>& batch, const SplitPlacement& placement) const {
  std::vector<int64_t> rows;
  for (const GroupSplit& split : placement.splits) rows.push_back(groups_[batch[split.group]].packing.prefix_rows);
  return rows;
}

void StepPlanner::CountGroups(const std::vector<uint32_t>& batch, v1::StepPlan& step, v1::StepReport& report) const {
  for (const uint32_t g : batch) {
    const GroupPlan& group = groups_[g];
    step.add_groups(g);
    report.set_tokens_logical(report.tokens_logical() + static_cast<uint64_t>(group.tokens_logical));
    report.set_tokens_computed(report.tokens_computed() + static_cast<uint64_t>(group.tokens_computed));
    report.set_flops(report.flops() + Count(options_.forward_only, group.flops));
    report.set_flops_dense(report.flops_dense() + Count(options_.forward_only, group.flops_dense));
  }
  report.set_num_groups(static_cast<uint32_t>(batch.size()));
}

// Adds what one rank computes of a step, in its order: groups of its own, and between them its parts of split ones.
absl::Status StepPlanner::AddRankOfStep(size_t rank, const InWork& work) {
  const auto& [batch, placement, step, report, ranks] = work;
  const int first = step.clusters_size();
  std::optional<StageOrders> orders;  // of a copy that shares nothing
  for (size_t place = 0; place <= placement.splits.size(); ++place) {
    std::vector<PackingGroup> running;
    for (const size_t i : placement.whole[rank][place]) {
      const GroupPlan& group = groups_[batch[i]];
      if (!group.runs) continue;
      running.push_back(group.packing);
      CountGroup(group.tokens_computed, /*is_part=*/false, ranks.reports[rank]);
    }
    if (!running.empty()) {
      ASSIGN_OR_RETURN(StagedClusters packed, Pack(running, /*mark=*/{}));
      const v1::PhaseSeconds seconds = AddClusters(rank, std::move(packed.clusters), work);
      if (options_.stages.empty()) ranks.whole.Add(rank, place, TotalSeconds(seconds));
      if (ranks.pipelines.empty()) orders = std::move(packed.orders);
    }
    if (place < placement.splits.size()) RETURN_IF_ERROR(AddPart(rank, place, first, work));
  }
  OrderStagesOf(rank, first, std::move(orders), work);
  return absl::OkStatus();
}

// Adds the rank's part of the split group that comes at `place`, if it has one. `first`: the rank's first cluster.
absl::Status StepPlanner::AddPart(size_t rank, size_t place, int first, const InWork& work) {
  const GroupSplit& split = work.placement.splits[place];
  const std::optional<size_t> index = split.PartOfRank(rank);
  if (!index) return absl::OkStatus();
  const bool helps = *index > 0;
  const PackingGroup part = PartOf(groups_[work.batch[split.group]].packing, split.rollouts[*index], helps);
  int64_t rows = helps ? 0 : part.prefix_rows;
  for (const PackingMember& member : part.members) rows += member.rows;
  CountGroup(rows, /*is_part=*/true, work.ranks.reports[rank]);
  const auto mark = [&](v1::Cluster& cluster) { MarkSplit(split, rank, cluster); };
  ASSIGN_OR_RETURN(StagedClusters packed, Pack({part}, mark));
  const v1::PhaseSeconds seconds = AddClusters(rank, std::move(packed.clusters), work);
  SetPart(rank, place, first, seconds, work);
  return absl::OkStatus();
}

// Sets what the part whose cluster was added last takes.
void StepPlanner::SetPart(size_t rank, size_t place, int first, const v1::PhaseSeconds& seconds,
                          const InWork& work) const {
  const size_t index = *work.placement.splits[place].PartOfRank(rank);
  SharedGroup& shared = work.ranks.shared[place];
  shared.waves_s[index] = seconds.suffix();
  if (index == 0) {
    shared.forward_s = seconds.prefix_forward();
    shared.backward_s = seconds.prefix_backward();
  }
  if (work.ranks.pipelines.empty()) return;
  work.ranks.pipelines[rank].parts[place] = static_cast<size_t>(work.step.clusters_size() - 1 - first);
}

// Packs groups that the rank computes whole, or its part of one, of whose cluster `mark` says so.
absl::StatusOr<StagedClusters> StepPlanner::Pack(const std::vector<PackingGroup>& groups,
                                                 const std::function<void(v1::Cluster&)>& mark) const {
  if (!options_.stages.empty()) return PackForStages(chooser_, request_.groups, groups, mark);
  StagedClusters packed;
  ASSIGN_OR_RETURN(packed.clusters, PackClusters(chooser_, groups));
  for (PackedCluster& cluster : packed.clusters) {
    if (mark) mark(cluster.cluster);
  }
  return packed;
}

// Adds what one rank computes of the pass: the clusters of the steps, in their order.
absl::Status StepPlanner::AddRankOfPass(size_t rank, std::span<const PlannedStep> steps, const InWork& work) {
  const int first = work.step.clusters_size();
  size_t place = 0;  // of the next split group
  for (const PlannedStep& planned : steps) {
    for (const v1::Cluster& of_step : planned.step.clusters()) {
      // One without waves stands where other copies have one of theirs.
      if (of_step.dp_rank() != rank || of_step.waves().empty()) continue;
      ASSIGN_OR_RETURN(std::vector<PackedCluster> packed, PackForPass(of_step));
      const v1::PhaseSeconds seconds = AddClusters(rank, std::move(packed), work);
      if (IsSplit(of_step)) {
        place = PlaceOfSplit(of_step.prefix_groups(0), work.placement);
        SetPart(rank, place++, first, seconds, work);
      } else if (options_.stages.empty()) {
        work.ranks.whole.Add(rank, place, TotalSeconds(seconds));
      }
    }
    AddGroupsOf(planned.report, rank, work.ranks.reports[rank]);
  }
  OrderStagesOf(rank, first, std::nullopt, work);
  return absl::OkStatus();
}

// Returns a cluster of a step as the pass runs it.
absl::StatusOr<std::vector<PackedCluster>> StepPlanner::PackForPass(const v1::Cluster& of_step) const {
  PackedCluster forward = ForwardOfStep(options_, request_.groups, of_step);
  if (forward.memory.peak_bytes <= options_.budget_bytes) return std::vector{std::move(forward)};
  ASSIGN_OR_RETURN(std::vector<PackedCluster> anew, PackClusters(chooser_, PackingOf(request_.groups, of_step)));
  for (PackedCluster& packed : anew) {
    *packed.cluster.mutable_helper_ranks() = of_step.helper_ranks();
    if (of_step.has_owner_rank()) packed.cluster.set_owner_rank(of_step.owner_rank());
  }
  return anew;
}

// Orders the stages of a copy that run its clusters, of which `first` is the step's first one. `orders`: those of a
// copy that shares no group, if they are known; of one that does, each place's are not the step's.
void StepPlanner::OrderStagesOf(size_t rank, int first, std::optional<StageOrders> orders, const InWork& work) const {
  const auto& [batch, placement, step, report, ranks] = work;
  if (options_.stages.empty() || step.clusters_size() == first) return;
  if (!orders) {
    std::vector<const v1::Cluster*> clusters;
    for (int c = first; c < step.clusters_size(); ++c) clusters.push_back(&step.clusters(c));
    StageQuestion question = StagesOf(options_, request_.groups, clusters);
    orders = options_.forward_only ? OrderForwards(question) : OrderStages(question);
    if (!ranks.pipelines.empty()) {
      ranks.pipelines[rank].question = std::move(question);
      ranks.pipelines[rank].orders = *orders;
    }
  }
  if (ranks.pipelines.empty()) ranks.whole.Add(rank, /*place=*/0, orders->end_s);
  if (!options_.forward_only) AddCopyStages(static_cast<uint32_t>(rank), *orders, step);
  DescribeStages(options_, *orders, ranks.reports[rank]);
  report.set_pipeline_s(std::max(report.pipeline_s(), orders->end_s));
  for (const StageRun& run : orders->stages) {
    RaisePeaks(run.peak_bytes, run.peak_bytes, options_, report, ranks.reports[rank]);
  }
}

// Adds clusters of one rank; answers what they take.
v1::PhaseSeconds StepPlanner::AddClusters(size_t rank, std::vector<PackedCluster> clusters, const InWork& work) {
  const auto& [batch, placement, step, report, ranks] = work;
  v1::RankReport& rank_report = ranks.reports[rank];
  v1::PhaseSeconds seconds;
  for (PackedCluster& packed : clusters) {
    packed.cluster.set_dp_rank(static_cast<uint32_t>(rank));
    if (options_.stages.empty()) {  // else it depends on what lives beside it
      RaisePeaks(packed.memory.peak_bytes, PeaksWithHeadroom(options_, packed.memory).peak(), options_, report,
                 rank_report);
    }
    report.set_num_waves(report.num_waves() + static_cast<uint32_t>(packed.cluster.waves_size()));
    ranks.work[rank] += packed.memory.work;
    v1::ClusterReport& cluster = *report.add_clusters();
    Describe(packed.cluster, cluster);
    DescribeMemory(options_, packed.memory, cluster);
    AddSeconds(cluster.seconds(), seconds);
    *step.add_clusters() = std::move(packed.cluster);
  }
  AddSeconds(seconds, *rank_report.mutable_seconds());
  return seconds;
}

void StepPlanner::DescribeRanks(const InWork& work) const {
  const auto& [batch, placement, step, report, ranks] = work;
  const Timeline timeline = ranks.Run();
  for (size_t rank = 0; rank < ranks.reports.size(); ++rank) {
    ranks.reports[rank].set_exchange_s(timeline.exchange_s[rank]);
    *report.add_ranks() = std::move(ranks.reports[rank]);
  }
  if (report.ranks_size() == 1) return;
  if (!ranks.pipelines.empty()) report.set_pipeline_s(timeline.max_s());
  report.set_imbalance(placement.imbalance());
  report.set_imbalance_whole(placement.imbalance_whole());
  report.set_over_bound(placement.over_bound());
  for (size_t i = 0; i < placement.splits.size(); ++i) {
    const GroupPlan& group = groups_[batch[placement.splits[i].group]];
    DescribeSplit(options_, group.packing, placement.splits[i], placement.shared[i], *report.add_split_groups());
  }
}

void StepPlanner::Describe(const v1::Cluster& cluster, v1::ClusterReport& report) {
  std::vector<uint32_t> seen;  // each once, in the order of the waves, which several ranks may have of a group
  absl::flat_hash_set<uint32_t> known;
  for (const v1::Wave& wave : cluster.waves()) {
    report.add_wave_sizes(static_cast<uint32_t>(wave.members_size()));
    for (const v1::WaveMember& member : wave.members()) {
      if (!seen.empty() && seen.back() == member.group()) continue;
      if (known.insert(member.group()).second) seen.push_back(member.group());
    }
  }
  for (const uint32_t g : seen) {
    const GroupPlan& group = groups_[g];
    if (group.packing.prefix_rows > 0 && !cluster.has_owner_rank()) *report.add_groups() = CostOf(g);
    group.packing.reuse ? report.add_reuse_uids(group.packing.uid) : report.add_dense_uids(group.packing.uid);
    if (report.reason().find(group.reason) == std::string::npos) {
      report.set_reason(absl::StrCat(report.reason(), report.reason().empty() ? "" : "; ", group.reason));
    }
  }
  if (const std::string split = SplitReason(cluster); !split.empty()) {
    report.set_reason(absl::StrCat(report.reason(), "; ", split));
  }
  if (options_.shape.cp > 1 && !cluster.prefix_groups().empty()) {
    report.set_reason(absl::StrCat(report.reason(), "; ", KvText(cluster.regather_prefix())));
  }
}

const v1::GroupCost& StepPlanner::CostOf(uint32_t g) {
  costs_.resize(groups_.size());
  if (!costs_[g]) costs_[g] = GroupCostOf(chooser_, groups_[g].packing);
  return *costs_[g];
}

}  // namespace stemma::server
