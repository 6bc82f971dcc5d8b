#include "server/planner/planner.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/admission/mini_batches.h"
#include "common/base/status_macros.h"
#include "common/cost/cost.h"
#include "common/cost/state_bytes.h"
#include "server/planner/group_cost.h"
#include "server/planner/memory_division.h"
#include "server/planner/plan_report.h"
#include "server/planner/wave_packing.h"

namespace stemma::server {
namespace {

// What one group costs, and which way it is computed.
struct GroupPlan {
  PackingGroup packing;
  bool runs = false;
  std::string reason;
  Flops flops, flops_dense;
  int64_t tokens_logical = 0, tokens_computed = 0;
  int64_t rollouts_run = 0;
};

GroupPlan PlanGroup(MemoryChooser& chooser, v1::Schedule schedule, uint32_t index, const PlannerGroup& group) {
  const ModelConfig& config = chooser.options().shape.config;
  GroupPlan plan;
  plan.packing.group = index;
  plan.packing.uid = group.uid;
  plan.packing.prefix_rows = group.prompt_tokens - 1;
  const int64_t prefix = plan.packing.prefix_rows;
  int64_t suffix_rows = 0;
  for (uint32_t i = 0; i < group.rollouts.size(); ++i) {
    const PlannerRollout& rollout = group.rollouts[i];
    if (!rollout.run) continue;
    plan.packing.members.push_back({i, rollout.response_tokens});
    plan.flops += SuffixFlops(config, prefix, rollout.response_tokens);
    plan.flops_dense += DenseFlops(config, prefix, rollout.response_tokens);
    suffix_rows += rollout.response_tokens;
  }
  plan.rollouts_run = static_cast<int64_t>(plan.packing.members.size());
  plan.runs = plan.rollouts_run > 0;
  if (!plan.runs) return plan;
  plan.flops += PrefixFlops(config, prefix);
  plan.reason = ChooseReuse(chooser, schedule, 1 - plan.flops.total() / plan.flops_dense.total(), plan.packing);
  plan.tokens_logical = plan.rollouts_run * prefix + suffix_rows;
  plan.tokens_computed = plan.packing.reuse ? prefix + suffix_rows : plan.tokens_logical;
  if (!plan.packing.reuse) plan.flops = plan.flops_dense;
  return plan;
}

double Count(bool forward_only, const Flops& flops) { return forward_only ? flops.forward : flops.total(); }

class Planner {
 public:
  Planner(const PlannerModel& model, const PlannerRequest& request, const StopCheck& stop)
      : model_(model), request_(request), chooser_(Options(stop, request.forward_only)) {}

  absl::StatusOr<PlanResult> Run() {
    for (uint32_t i = 0; i < request_.groups.size(); ++i) {
      groups_.push_back(PlanGroup(chooser_, request_.schedule, i, request_.groups[i]));
      if (chooser_.options().stopped()) return absl::CancelledError("planning was stopped");
    }
    costs_.resize(groups_.size());
    if (request_.log_prob_pass) {
      std::vector<uint32_t> all(groups_.size());
      std::iota(all.begin(), all.end(), 0u);
      MemoryChooser entry(Options(chooser_.options().stop, /*forward_only=*/true));
      ASSIGN_OR_RETURN(*result_.plan.mutable_log_prob_pass(), PlanStep(0, all, entry));
    }
    const int64_t epochs_listed = request_.shuffle ? request_.epochs : 1;
    result_.repeats = static_cast<uint32_t>(request_.epochs / epochs_listed);
    for (int64_t epoch = 0; epoch < epochs_listed; ++epoch) {
      for (const std::vector<uint32_t>& batch : Batches(epoch)) {
        result_.work.emplace_back();
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
    options.stop = stop;
    return options;
  }

  std::vector<std::vector<uint32_t>> Batches(int64_t epoch) const {
    const MiniBatchRule rule = {.groups = request_.mini_batch_groups,
                                .shuffle = request_.shuffle,
                                .seed = request_.seed,
                                .payload_digest = request_.payload_digest};
    return MiniBatches(static_cast<uint32_t>(groups_.size()), rule, static_cast<uint64_t>(epoch));
  }

  // `chooser`: the request's, or that of the entry pass.
  absl::StatusOr<v1::StepPlan> PlanStep(uint32_t epoch, const std::vector<uint32_t>& batch, MemoryChooser& chooser) {
    const MemoryOptions& memory = chooser.options();
    const bool forward_only = memory.forward_only;
    v1::StepPlan step;
    step.set_epoch(epoch);
    v1::StepReport& report = *result_.report.add_steps();
    std::vector<PackingGroup> running;
    for (const uint32_t g : batch) {
      const GroupPlan& group = groups_[g];
      step.add_groups(g);
      if (group.runs) running.push_back(group.packing);
      report.set_tokens_logical(report.tokens_logical() + static_cast<uint64_t>(group.tokens_logical));
      report.set_tokens_computed(report.tokens_computed() + static_cast<uint64_t>(group.tokens_computed));
      report.set_flops(report.flops() + Count(forward_only, group.flops));
      report.set_flops_dense(report.flops_dense() + Count(forward_only, group.flops_dense));
    }
    report.set_num_groups(static_cast<uint32_t>(batch.size()));
    ASSIGN_OR_RETURN(std::vector<PackedCluster> clusters, PackClusters(chooser, running));
    for (PackedCluster& packed : clusters) {
      report.set_peak_bytes(std::max(report.peak_bytes(), static_cast<uint64_t>(packed.memory.peak_bytes)));
      const auto with_headroom = static_cast<uint64_t>(PeaksWithHeadroom(memory, packed.memory).peak());
      report.set_peak_bytes_with_headroom(std::max(report.peak_bytes_with_headroom(), with_headroom));
      report.set_num_waves(report.num_waves() + static_cast<uint32_t>(packed.cluster.waves_size()));
      if (!result_.work.empty()) result_.work.back() += packed.memory.work;  // not of the entry pass
      v1::ClusterReport& cluster = *report.add_clusters();
      Describe(chooser, packed.cluster, cluster);
      DescribeMemory(memory, packed.memory, cluster);
      AddSeconds(cluster.seconds(), *report.mutable_seconds());
      *step.add_clusters() = std::move(packed.cluster);
    }
    if (!forward_only && !clusters.empty()) {
      report.mutable_seconds()->set_apply(Seconds(ApplyWork(model_.config), model_.rates));
    }
    return step;
  }

  void Describe(MemoryChooser& chooser, const v1::Cluster& cluster, v1::ClusterReport& report) {
    std::vector<uint32_t> seen;
    for (const v1::Wave& wave : cluster.waves()) {
      report.add_wave_sizes(static_cast<uint32_t>(wave.members_size()));
      for (const v1::WaveMember& member : wave.members()) {
        if (seen.empty() || seen.back() != member.group()) seen.push_back(member.group());
      }
    }
    seen.erase(std::unique(seen.begin(), seen.end()), seen.end());
    for (const uint32_t g : seen) {
      const GroupPlan& group = groups_[g];
      if (group.packing.prefix_rows > 0) *report.add_groups() = CostOf(chooser, g);
      group.packing.reuse ? report.add_reuse_uids(group.packing.uid) : report.add_dense_uids(group.packing.uid);
      if (report.reason().find(group.reason) == std::string::npos) {
        report.set_reason(absl::StrCat(report.reason(), report.reason().empty() ? "" : "; ", group.reason));
      }
    }
  }

  // Costs the same in every epoch, so it is computed once.
  v1::GroupCost CostOf(MemoryChooser& chooser, uint32_t g) {
    if (&chooser != &chooser_) return GroupCostOf(chooser, groups_[g].packing);
    if (!costs_[g]) costs_[g] = GroupCostOf(chooser, groups_[g].packing);
    return *costs_[g];
  }

  void AddToTotals(const v1::StepReport& step) {
    v1::PlanReport& report = result_.report;
    report.set_num_clusters(report.num_clusters() + static_cast<uint32_t>(step.clusters_size()));
    report.set_num_waves(report.num_waves() + step.num_waves());
    report.set_tokens_logical(report.tokens_logical() + step.tokens_logical());
    report.set_tokens_computed(report.tokens_computed() + step.tokens_computed());
    report.set_flops(report.flops() + step.flops());
    report.set_flops_dense(report.flops_dense() + step.flops_dense());
    report.set_peak_bytes(std::max(report.peak_bytes(), step.peak_bytes()));
    report.set_peak_bytes_with_headroom(std::max(report.peak_bytes_with_headroom(), step.peak_bytes_with_headroom()));
    AddSeconds(step.seconds(), *report.mutable_seconds());
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
    const int passes = request_.log_prob_pass ? 1 : 0;
    if (passes > 0) AddToTotals(report.steps(0));
    for (uint32_t repeat = 0; repeat < result_.repeats; ++repeat) {
      for (int i = passes; i < report.steps_size(); ++i) AddToTotals(report.steps(i));
    }
    report.set_budget_bytes(model_.run.memory_budget_bytes());
    DescribeState(StateBytesOf(model_.config, RunDtypeOf(model_.run.dtype())), model_.run.optimizer_residency(),
                  *report.mutable_state());
    DescribeRates(model_.rates, *report.mutable_rates());
  }

  const PlannerModel& model_;
  const PlannerRequest& request_;
  MemoryChooser chooser_;  // of what the request asks for
  std::vector<GroupPlan> groups_;
  std::vector<std::optional<v1::GroupCost>> costs_;  // of each group in an optimizer step
  PlanResult result_;
};

}  // namespace

absl::StatusOr<PlanResult> MakePlan(const PlannerModel& model, const PlannerRequest& request, const StopCheck& stop) {
  return Planner(model, request, stop).Run();
}

}  // namespace stemma::server
