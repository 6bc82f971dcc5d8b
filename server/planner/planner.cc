#include "server/planner/planner.h"

#include <numeric>
#include <optional>
#include <span>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "common/admission/mini_batches.h"
#include "common/base/status_macros.h"
#include "common/cost/plan_seconds.h"
#include "common/cost/state_bytes.h"
#include "glog/logging.h"
#include "server/planner/group_plan.h"
#include "server/planner/memory_division.h"
#include "server/planner/plan_report.h"
#include "server/planner/request_options.h"
#include "server/planner/split_cost.h"
#include "server/planner/step_planner.h"

namespace stemma::server {
namespace {

class Planner {
 public:
  // `sums_gradients`: of sharded parameters, in each step, to reduce them once.
  Planner(const PlannerModel& model, const PlannerRequest& request, const StopCheck& stop, bool sums_gradients)
      : model_(model),
        request_(request),
        sums_gradients_(sums_gradients),
        chooser_(Options(stop, request.forward_only)),
        planner_(model, request, groups_, chooser_) {}

  absl::StatusOr<PlanResult> Run() {
    for (uint32_t i = 0; i < request_.groups.size(); ++i) {
      groups_.push_back(PlanGroup(chooser_, model_.config, request_.schedule, i, request_.groups[i]));
      if (is_stopped()) return Stopped();
    }
    if (request_.schedule == v1::AUTO && model_.run.split_groups() == v1::SPLIT_AUTO && model_.dp_ranks() > 1) {
      for (const std::vector<uint32_t>& batch : Batches(0)) {
        ReuseWhatIsShared(chooser_, model_.config, batch, model_.dp_ranks(), groups_);
      }
    }
    std::optional<MemoryChooser> entry;
    if (request_.log_prob_passes > 0) {
      entry.emplace(Options(chooser_.options().stop, /*forward_only=*/true));
      PinGroups(*entry);
    }
    ASSIGN_OR_RETURN(std::vector<PlannedStep> steps, PlanEpochs());
    if (entry) {
      ASSIGN_OR_RETURN(PlannedStep pass, PlanPass(*entry, steps));
      *result_.plan.mutable_log_prob_pass() = std::move(pass.step);
      *result_.report.add_steps() = std::move(pass.report);
    }
    for (PlannedStep& step : steps) {
      *result_.plan.add_steps() = std::move(step.step);
      *result_.report.add_steps() = std::move(step.report);
      result_.work.push_back(std::move(step.work));
    }
    if (is_stopped()) return Stopped();
    Totals();
    return std::move(result_);
  }

 private:
  bool is_stopped() const { return chooser_.options().stopped(); }
  static absl::Status Stopped() { return absl::CancelledError("planning was stopped"); }

  MemoryOptions Options(const StopCheck& stop, bool forward_only) const {
    MemoryOptions options = RequestOptions(model_, request_, forward_only, sums_gradients_);
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

  SplitPlacement Place(const std::vector<uint32_t>& batch) {
    const v1::Split mode = model_.run.split_groups();
    const auto place = [&](v1::Split with) {
      return PlaceMiniBatch(chooser_, groups_, batch, model_.dp_ranks(), with);
    };
    SplitPlacement placement = place(mode);
    if (chooser_.options().stages.empty() || mode != v1::SPLIT_AUTO || placement.splits.empty()) return placement;
    // Stages fill and drain for each shared group, which no group's own costs tell.
    SplitPlacement whole = place(v1::SPLIT_OFF);
    if (placement.splits.size() == whole.splits.size()) return placement;  // those that were pinned
    const double whole_s = planner_.Seconds(batch, whole);
    const bool worth = planner_.Seconds(batch, placement) < (1 - kWorthSplitting) * whole_s;
    return worth ? std::move(placement) : std::move(whole);
  }

  // Entry log-probs lie where they were computed, so the ranks of a group's first mini-batch compute them, and the
  // group in all epochs. A group that is split is so in that pass, too, whose memory may be less.
  void PinGroups(MemoryChooser& entry) {
    for (GroupPlan& group : groups_) group.stays_whole = !MaySplit(entry, group.packing);
    for (const std::vector<uint32_t>& batch : Batches(0)) PinMiniBatch(Place(batch), batch, groups_);
  }

  // Plans the steps of one epoch, where every epoch runs the same, else of all.
  absl::StatusOr<std::vector<PlannedStep>> PlanEpochs() {
    const int64_t epochs_listed = request_.shuffle ? request_.epochs : 1;
    result_.repeats = static_cast<uint32_t>(request_.epochs / epochs_listed);
    std::vector<PlannedStep> steps;
    for (int64_t epoch = 0; epoch < epochs_listed; ++epoch) {
      for (const std::vector<uint32_t>& batch : Batches(epoch)) {
        const SplitPlacement placement = Place(batch);
        ASSIGN_OR_RETURN(PlannedStep step, planner_.Plan(batch, placement));
        step.step.set_epoch(static_cast<uint32_t>(epoch));
        steps.push_back(std::move(step));
        if (epoch == 0) AddSplitPlaces(placement, batch);
      }
    }
    return steps;
  }

  void AddSplitPlaces(const SplitPlacement& placement, const std::vector<uint32_t>& batch) {
    for (const GroupSplit& split : placement.splits) {
      split_places_.emplace(batch[split.group], split_places_.size());
    }
  }

  absl::StatusOr<PlannedStep> PlanPass(MemoryChooser& entry, const std::vector<PlannedStep>& steps) const {
    const size_t first_epoch = Batches(0).size();
    return StepPlanner(model_, request_, groups_, entry)
        .PlanPassBefore(std::span(steps).first(first_epoch), PlacePass(entry));
  }

  // Returns what groups cost where their steps have them, split ones in the order of the steps. What is whole is in no
  // place: it follows from the steps' clusters.
  SplitPlacement PlacePass(MemoryChooser& entry) const {
    std::vector<uint32_t> all(groups_.size());
    std::iota(all.begin(), all.end(), 0u);
    const SplitPlacement found = PlaceMiniBatch(entry, groups_, all, model_.dp_ranks(), model_.run.split_groups());
    CHECK_EQ(found.splits.size(), split_places_.size()) << "what is split, and what is not, was pinned";
    SplitPlacement pass = found;
    pass.whole.assign(found.whole.size(), {});
    for (size_t i = 0; i < found.splits.size(); ++i) {
      const size_t place = split_places_.at(static_cast<uint32_t>(found.splits[i].group));
      pass.splits[place] = found.splits[i];
      pass.shared[place] = found.shared[i];
    }
    return pass;
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
    report.set_checkpoint_weights_bytes(static_cast<uint64_t>(CheckpointBytes(model_, request_)));
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
  StepPlanner planner_;                                 // likewise
  absl::flat_hash_map<uint32_t, size_t> split_places_;  // of groups that are split, in the order of the first steps
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
