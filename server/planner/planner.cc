#include "server/planner/planner.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "common/admission/mini_batches.h"
#include "common/base/status_macros.h"
#include "common/cost/flops.h"
#include "common/cost/plan_seconds.h"
#include "common/cost/state_bytes.h"
#include "server/planner/group_cost.h"
#include "server/planner/group_plan.h"
#include "server/planner/memory_division.h"
#include "server/planner/plan_report.h"
#include "server/planner/ranks_of_step.h"
#include "server/planner/sharded_step.h"
#include "server/planner/split_cost.h"
#include "server/planner/stage_packing.h"
#include "server/planner/stage_plan.h"
#include "server/planner/wave_packing.h"

namespace stemma::server {
namespace {

double Count(bool forward_only, const Flops& flops) { return forward_only ? flops.forward : flops.total(); }

// One mini-batch's step while ranks are added to it. `chooser`: the request's, or that of the entry pass.
struct StepInWork {
  const std::vector<uint32_t>& batch;
  const SplitPlacement& placement;
  MemoryChooser& chooser;
  v1::StepPlan& step;
  v1::StepReport& report;
  RanksOfStep& ranks;
};

class Planner {
 public:
  // `sums_gradients`: of sharded parameters, in each step, to reduce them once.
  Planner(const PlannerModel& model, const PlannerRequest& request, const StopCheck& stop, bool sums_gradients)
      : model_(model),
        request_(request),
        sums_gradients_(sums_gradients),
        chooser_(Options(stop, request.forward_only)) {}

  absl::StatusOr<PlanResult> Run() {
    for (uint32_t i = 0; i < request_.groups.size(); ++i) {
      groups_.push_back(PlanGroup(chooser_, model_.config, request_.schedule, i, request_.groups[i]));
      if (chooser_.options().stopped()) return absl::CancelledError("planning was stopped");
    }
    costs_.resize(groups_.size());
    if (request_.schedule == v1::AUTO && model_.run.split_groups() == v1::SPLIT_AUTO && model_.dp_ranks() > 1) {
      for (const std::vector<uint32_t>& batch : Batches(0)) {
        ReuseWhatIsShared(chooser_, model_.config, batch, model_.dp_ranks(), groups_);
      }
    }
    if (request_.log_prob_passes > 0) {
      MemoryChooser entry(Options(chooser_.options().stop, /*forward_only=*/true));
      PinGroups(entry);
      std::vector<uint32_t> all(groups_.size());
      std::iota(all.begin(), all.end(), 0u);
      ASSIGN_OR_RETURN(*result_.plan.mutable_log_prob_pass(), PlanStep(0, all, entry));
    }
    const int64_t epochs_listed = request_.shuffle ? request_.epochs : 1;
    result_.repeats = static_cast<uint32_t>(request_.epochs / epochs_listed);
    for (int64_t epoch = 0; epoch < epochs_listed; ++epoch) {
      for (const std::vector<uint32_t>& batch : Batches(epoch)) {
        result_.work.emplace_back(static_cast<size_t>(model_.dp_ranks()));
        ASSIGN_OR_RETURN(*result_.plan.add_steps(), PlanStep(static_cast<uint32_t>(epoch), batch, chooser_));
      }
    }
    if (chooser_.options().stopped()) return absl::CancelledError("planning was stopped");
    Totals();
    return std::move(result_);
  }

 private:
  MemoryOptions Options(const StopCheck& stop, bool forward_only) const {
    MemoryOptions options = MemoryOptionsOf(model_.config, model_.run, model_.rates, forward_only);
    options.SetWholeRollouts(request_.whole_rollouts && !forward_only);
    options.stop = stop;
    const bool staged = !options.stages.empty(), sharded = ShardsParameters(model_.run);
    options.sums_gradients = sums_gradients_ && !forward_only;
    if (sharded) {
      options.wave_rows = std::max(options.wave_rows, RowsWorthGathering(model_, options.sums_gradients));
      options.cluster_prefix_rows = options.wave_rows;
    }
    if (forward_only) options.held_bytes = CheckpointBytes();
    if (sharded) options.held_bytes += StateBytesOf(model_.config, model_.run).gathering;
    if (options.sums_gradients) options.held_bytes += StateBytesOf(model_.config, model_.run).gradient_sums;
    if (staged && !forward_only) options.rounds_in_flight = static_cast<int64_t>(options.stages.size());
    // What is in flight of it, orders say when they are known.
    const int64_t in_flight = staged ? RowsInFlightBytes(options, request_) : 0;
    if (staged || forward_only || sharded) {
      options.KeepFree(options.held_bytes + in_flight);
    }
    return options;
  }

  // Forward-only passes hold the weights that they read from a checkpoint beside the model's own.
  int64_t CheckpointBytes() const {
    return request_.reads_checkpoint ? StateBytesOf(model_.config, model_.run).weights : 0;
  }

  std::vector<std::vector<uint32_t>> Batches(int64_t epoch) const {
    const MiniBatchRule rule = {.groups = request_.mini_batch_groups,
                                .shuffle = request_.shuffle,
                                .seed = request_.seed,
                                .payload_digest = request_.payload_digest};
    return MiniBatches(static_cast<uint32_t>(groups_.size()), rule, static_cast<uint64_t>(epoch));
  }

  SplitPlacement Place(const std::vector<uint32_t>& batch, MemoryChooser& chooser) {
    const v1::Split mode = model_.run.split_groups();
    const auto place = [&](v1::Split with) { return PlaceMiniBatch(chooser, groups_, batch, model_.dp_ranks(), with); };
    SplitPlacement placement = place(mode);
    if (chooser.options().stages.empty() || mode != v1::SPLIT_AUTO || placement.splits.empty()) return placement;
    // Stages fill and drain for each shared group, which no group's own costs tell.
    SplitPlacement whole = place(v1::SPLIT_OFF);
    if (placement.splits.size() == whole.splits.size()) return placement;  // those that were pinned
    const double whole_s = SecondsOfPlacement(batch, whole, chooser);
    const bool worth = SecondsOfPlacement(batch, placement, chooser) < (1 - kWorthSplitting) * whole_s;
    return worth ? std::move(placement) : std::move(whole);
  }

  // Returns the prefix rows of each group that is split.
  std::vector<int64_t> SplitRows(const std::vector<uint32_t>& batch, const SplitPlacement& placement) const {
    std::vector<int64_t> rows;
    for (const GroupSplit& split : placement.splits) rows.push_back(groups_[batch[split.group]].packing.prefix_rows);
    return rows;
  }

  // Returns what the slowest copy takes for a placement, all exchanges included; infinity: it does not fit.
  double SecondsOfPlacement(const std::vector<uint32_t>& batch, const SplitPlacement& placement,
                            MemoryChooser& chooser) {
    v1::StepPlan step;
    v1::StepReport report;
    RanksOfStep ranks(placement, SplitRows(batch, placement), chooser.options());
    const StepInWork work = {batch, placement, chooser, step, report, ranks};
    absl::Status status;
    for (size_t rank = 0; status.ok() && rank < placement.whole.size(); ++rank) status = PlanRank(rank, work);
    if (!status.ok()) return std::numeric_limits<double>::infinity();
    return ranks.Run().max_s();
  }

  // Entry log-probs lie where they were computed, so the ranks of a group's first mini-batch compute them, and the
  // group in all epochs. A group that is split is so in that pass, too, whose memory may be less.
  void PinGroups(MemoryChooser& entry) {
    for (GroupPlan& group : groups_) group.stays_whole = !MaySplit(entry, group.packing);
    for (const std::vector<uint32_t>& batch : Batches(0)) PinMiniBatch(Place(batch, chooser_), batch, groups_);
  }

  // `chooser`: the request's, or that of the entry pass.
  absl::StatusOr<v1::StepPlan> PlanStep(uint32_t epoch, const std::vector<uint32_t>& batch, MemoryChooser& chooser) {
    const bool forward_only = chooser.options().forward_only;
    v1::StepPlan step;
    step.set_epoch(epoch);
    v1::StepReport& report = *result_.report.add_steps();
    for (const uint32_t g : batch) {
      const GroupPlan& group = groups_[g];
      step.add_groups(g);
      report.set_tokens_logical(report.tokens_logical() + static_cast<uint64_t>(group.tokens_logical));
      report.set_tokens_computed(report.tokens_computed() + static_cast<uint64_t>(group.tokens_computed));
      report.set_flops(report.flops() + Count(forward_only, group.flops));
      report.set_flops_dense(report.flops_dense() + Count(forward_only, group.flops_dense));
    }
    report.set_num_groups(static_cast<uint32_t>(batch.size()));
    const SplitPlacement placement = Place(batch, chooser);
    RanksOfStep ranks(placement, SplitRows(batch, placement), chooser.options());
    const StepInWork work = {batch, placement, chooser, step, report, ranks};
    for (size_t rank = 0; rank < placement.whole.size(); ++rank) RETURN_IF_ERROR(PlanRank(rank, work));
    if (!result_.work.empty()) result_.work.back() = ranks.work;  // not of the entry pass
    for (const v1::RankReport& rank : ranks.reports) MaxSeconds(rank.seconds(), *report.mutable_seconds());
    if (!forward_only && step.clusters_size() > 0) {
      report.mutable_seconds()->set_apply(Seconds(ApplyWork(model_.config), model_.rates));
    }
    if (ranks.reports.size() > 1 || !chooser.options().stages.empty()) {
      DescribeRanks(batch, placement, chooser, std::move(ranks), report);
    }
    if (ShardsParameters(model_.run)) ShardStep(model_, chooser.options(), request_.groups, step, report);
    return step;
  }

  // Adds what one rank computes of a step, in its order: groups of its own, and between them its parts of split ones.
  absl::Status PlanRank(size_t rank, const StepInWork& work) {
    const auto& [batch, placement, chooser, step, report, ranks] = work;
    const int first = step.clusters_size();
    StageOrders orders;  // of a copy that shares nothing
    for (size_t place = 0; place <= placement.splits.size(); ++place) {
      std::vector<PackingGroup> running;
      for (const size_t i : placement.whole[rank][place]) {
        const GroupPlan& group = groups_[batch[i]];
        if (!group.runs) continue;
        running.push_back(group.packing);
        CountGroup(group.tokens_computed, /*is_part=*/false, ranks.reports[rank]);
      }
      if (!running.empty()) {
        ASSIGN_OR_RETURN(StagedClusters packed, Pack(running, chooser, /*mark=*/{}));
        const v1::PhaseSeconds seconds = AddClusters(rank, std::move(packed.clusters), work);
        if (chooser.options().stages.empty()) ranks.whole.Add(rank, place, TotalSeconds(seconds));
        orders = std::move(packed.orders);
      }
      if (place == placement.splits.size()) break;
      const int before = step.clusters_size();
      RETURN_IF_ERROR(AddPart(rank, place, work));
      if (step.clusters_size() == before || ranks.pipelines.empty()) continue;
      ranks.pipelines[rank].parts[place] = static_cast<size_t>(before - first);
    }
    if (chooser.options().stages.empty() || step.clusters_size() == first) return absl::OkStatus();
    OrderStagesOf(rank, first, std::move(orders), work);
    return absl::OkStatus();
  }

  // Adds the rank's part of the split group that comes at `place`, if it has one.
  absl::Status AddPart(size_t rank, size_t place, const StepInWork& work) {
    const GroupSplit& split = work.placement.splits[place];
    SharedGroup& shared = work.ranks.shared[place];
    const std::optional<size_t> index = split.PartOfRank(rank);
    if (!index) return absl::OkStatus();
    const bool helps = *index > 0;
    const PackingGroup part = PartOf(groups_[work.batch[split.group]].packing, split.rollouts[*index], helps);
    int64_t rows = helps ? 0 : part.prefix_rows;
    for (const PackingMember& member : part.members) rows += member.rows;
    CountGroup(rows, /*is_part=*/true, work.ranks.reports[rank]);
    const auto mark = [&](v1::Cluster& cluster) { MarkSplit(split, rank, cluster); };
    ASSIGN_OR_RETURN(StagedClusters packed, Pack({part}, work.chooser, mark));
    const v1::PhaseSeconds seconds = AddClusters(rank, std::move(packed.clusters), work);
    shared.waves_s[*index] = seconds.suffix();
    if (helps) return absl::OkStatus();
    shared.forward_s = seconds.prefix_forward();
    shared.backward_s = seconds.prefix_backward();
    return absl::OkStatus();
  }

  // Packs groups that the rank computes whole, or its part of one, of whose cluster `mark` says so.
  absl::StatusOr<StagedClusters> Pack(const std::vector<PackingGroup>& groups, MemoryChooser& chooser,
                                      const std::function<void(v1::Cluster&)>& mark) const {
    if (!chooser.options().stages.empty()) return PackForStages(chooser, request_.groups, groups, mark);
    StagedClusters packed;
    ASSIGN_OR_RETURN(packed.clusters, PackClusters(chooser, groups));
    for (PackedCluster& cluster : packed.clusters) {
      if (mark) mark(cluster.cluster);
    }
    return packed;
  }

  // Adds the orders in which the stages of a copy run its clusters, of which `first` is the first of the step's. Those
  // of a copy that shares groups are made here: they are not one place's.
  void OrderStagesOf(size_t rank, int first, StageOrders orders, const StepInWork& work) const {
    const auto& [batch, placement, chooser, step, report, ranks] = work;
    const MemoryOptions& memory = chooser.options();
    if (ranks.pipelines.empty()) {
      ranks.whole.Add(rank, /*place=*/0, orders.end_s);
    } else {
      std::vector<const v1::Cluster*> clusters;
      for (int c = first; c < step.clusters_size(); ++c) clusters.push_back(&step.clusters(c));
      CopyPipeline& pipeline = ranks.pipelines[rank];
      pipeline.question = StagesOf(memory, request_.groups, clusters);
      orders = memory.forward_only ? OrderForwards(pipeline.question) : OrderStages(pipeline.question);
      pipeline.orders = orders;
    }
    if (!memory.forward_only) AddCopyStages(static_cast<uint32_t>(rank), orders, step);
    DescribeStages(memory, orders, ranks.reports[rank]);
    report.set_pipeline_s(std::max(report.pipeline_s(), orders.end_s));
    for (const StageRun& run : orders.stages) {
      RaisePeaks(run.peak_bytes, run.peak_bytes, memory, report, ranks.reports[rank]);
    }
  }

  // Adds clusters of one rank; answers what they take.
  v1::PhaseSeconds AddClusters(size_t rank, std::vector<PackedCluster> clusters, const StepInWork& work) {
    const auto& [batch, placement, chooser, step, report, ranks] = work;
    const MemoryOptions& memory = chooser.options();
    v1::RankReport& rank_report = ranks.reports[rank];
    v1::PhaseSeconds seconds;
    for (PackedCluster& packed : clusters) {
      packed.cluster.set_dp_rank(static_cast<uint32_t>(rank));
      if (memory.stages.empty()) {  // else it depends on what lives beside it
        RaisePeaks(packed.memory.peak_bytes, PeaksWithHeadroom(memory, packed.memory).peak(), memory, report,
                   rank_report);
      }
      report.set_num_waves(report.num_waves() + static_cast<uint32_t>(packed.cluster.waves_size()));
      ranks.work[rank] += packed.memory.work;
      v1::ClusterReport& cluster = *report.add_clusters();
      Describe(chooser, packed.cluster, cluster);
      DescribeMemory(memory, packed.memory, cluster);
      AddSeconds(cluster.seconds(), seconds);
      *step.add_clusters() = std::move(packed.cluster);
    }
    AddSeconds(seconds, *rank_report.mutable_seconds());
    return seconds;
  }

  void DescribeRanks(const std::vector<uint32_t>& batch, const SplitPlacement& placement, const MemoryChooser& chooser,
                     RanksOfStep ranks, v1::StepReport& report) const {
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
      DescribeSplit(chooser.options(), group.packing, placement.splits[i], placement.shared[i],
                    *report.add_split_groups());
    }
  }

  void Describe(MemoryChooser& chooser, const v1::Cluster& cluster, v1::ClusterReport& report) {
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
      if (group.packing.prefix_rows > 0 && !cluster.has_owner_rank()) *report.add_groups() = CostOf(chooser, g);
      group.packing.reuse ? report.add_reuse_uids(group.packing.uid) : report.add_dense_uids(group.packing.uid);
      if (report.reason().find(group.reason) == std::string::npos) {
        report.set_reason(absl::StrCat(report.reason(), report.reason().empty() ? "" : "; ", group.reason));
      }
    }
    if (const std::string split = SplitReason(cluster); !split.empty()) {
      report.set_reason(absl::StrCat(report.reason(), "; ", split));
    }
    if (chooser.options().shape.cp > 1 && !cluster.prefix_groups().empty()) {
      report.set_reason(absl::StrCat(report.reason(), "; ", KvText(cluster.regather_prefix())));
    }
  }

  // Costs the same in every epoch, so it is computed once.
  v1::GroupCost CostOf(MemoryChooser& chooser, uint32_t g) {
    if (&chooser != &chooser_) return GroupCostOf(chooser, groups_[g].packing);
    if (!costs_[g]) costs_[g] = GroupCostOf(chooser, groups_[g].packing);
    return *costs_[g];
  }

  void Totals() {
    v1::PlanReport& report = result_.report;
    report.set_num_steps(static_cast<uint32_t>(result_.plan.steps_size()) * result_.repeats);
    report.set_num_groups(static_cast<uint32_t>(groups_.size()));
    for (size_t g = 0; g < groups_.size(); ++g) {
      report.set_num_rollouts(report.num_rollouts() + static_cast<uint32_t>(request_.groups[g].rollouts.size()));
      report.set_rollouts_run(report.rollouts_run() + static_cast<uint32_t>(groups_[g].rollouts_run));
      if (!groups_[g].runs) continue;
      groups_[g].packing.reuse ? report.set_groups_reuse(report.groups_reuse() + 1)
                               : report.set_groups_dense(report.groups_dense() + 1);
    }
    const int first_step = request_.log_prob_passes > 0 ? 1 : 0;
    for (int pass = 0; pass < request_.log_prob_passes; ++pass) AddToTotals(report.steps(0), report);
    for (uint32_t repeat = 0; repeat < result_.repeats; ++repeat) {
      for (int i = first_step; i < report.steps_size(); ++i) AddToTotals(report.steps(i), report);
    }
    report.set_log_prob_passes(static_cast<uint32_t>(request_.log_prob_passes));
    report.set_checkpoint_weights_bytes(static_cast<uint64_t>(CheckpointBytes()));
    report.set_shards_parameters(ShardsParameters(model_.run));
    report.set_budget_bytes(model_.run.memory_budget_bytes());
    DescribeState(StateBytesOf(model_.config, model_.run), model_.run.optimizer_residency(), *report.mutable_state());
    DescribeRates(model_.rates, *report.mutable_rates());
  }

  const PlannerModel& model_;
  const PlannerRequest& request_;
  const bool sums_gradients_;
  MemoryChooser chooser_;  // of what the request asks for
  std::vector<GroupPlan> groups_;
  std::vector<std::optional<v1::GroupCost>> costs_;  // of each group in an optimizer step
  PlanResult result_;
};

}  // namespace

absl::StatusOr<PlanResult> MakePlan(const PlannerModel& model, const PlannerRequest& request, const StopCheck& stop) {
  const auto plan = [&](bool sums_gradients) { return Planner(model, request, stop, sums_gradients).Run(); };
  const v1::ReduceGradients reduction = model.run.reduce_gradients();
  const bool makes_gradients = ShardsParameters(model.run) && !request.forward_only;
  if (!makes_gradients || reduction == v1::REDUCE_GRADIENTS_SWEEP) return plan(false);
  absl::StatusOr<PlanResult> summed = plan(true);
  if (reduction == v1::REDUCE_GRADIENTS_STEP || absl::IsCancelled(summed.status())) return summed;
  absl::StatusOr<PlanResult> swept = plan(false);
  if (!swept.ok() || !summed.ok()) return swept;
  const auto cost = [](const PlanResult& p) { return std::pair(PlanSeconds(p.report), p.report.parameters_bytes()); };
  return cost(*summed) < cost(*swept) ? summed : swept;
}

}  // namespace stemma::server
