#include "tests/testing/in_process.h"

#include <utility>

#include "common/admission/normalization.h"
#include "common/base/status_macros.h"
#include "common/model/model_directory.h"
#include "server/planner/memory_division.h"
#include "server/protocol/step_messages.h"

namespace stemma::testing {
namespace {

constexpr char kIncarnation[] = "in-process";
constexpr int64_t kMachineBytes = int64_t{64} << 30;  // that the planner believes in

// One cluster for each group: the same waves, cut where the group changes.
void SplitClusters(v1::StepPlan& step) {
  v1::StepPlan split;
  for (const v1::Cluster& cluster : step.clusters()) {
    v1::Cluster policies = cluster;
    policies.clear_prefix_groups();
    policies.clear_waves();
    std::map<uint32_t, v1::Cluster> by_group;
    for (const v1::Wave& wave : cluster.waves()) {
      for (const v1::WaveMember& member : wave.members()) by_group[member.group()] = policies;
    }
    for (const uint32_t g : cluster.prefix_groups()) by_group[g].add_prefix_groups(g);
    for (const v1::Wave& wave : cluster.waves()) {
      std::map<uint32_t, v1::Wave> parts;
      for (const v1::WaveMember& member : wave.members()) *parts[member.group()].add_members() = member;
      for (auto& [g, part] : parts) {
        part.set_layout(wave.layout());
        *by_group[g].add_waves() = std::move(part);
      }
    }
    for (auto& [g, part] : by_group) *split.add_clusters() = std::move(part);
  }
  step.mutable_clusters()->Swap(split.mutable_clusters());
}

}  // namespace

absl::StatusOr<std::unique_ptr<InProcess>> InProcess::Create(const InProcessOptions& options, Backend backend,
                                                             std::unique_ptr<CopyEngine> copies) {
  ASSIGN_OR_RETURN(const ModelDirectory directory, OpenModelDirectory(options.run.model()));
  InProcessOptions divided = options;
  ASSIGN_OR_RETURN(divided.run, DivideMemory(directory.config, {.device_free_bytes = kMachineBytes}, options.run));
  internal::v1::Configure configure;
  configure.set_epoch(1);
  configure.set_generation(1);
  *configure.mutable_config() = divided.run;
  ASSIGN_OR_RETURN(std::unique_ptr<ModelEngine> engine,
                   ModelEngine::Create(configure, kIncarnation, std::move(backend), std::move(copies)));
  const ModelConfig model = engine->weights().config;
  return std::unique_ptr<InProcess>(new InProcess(divided, model, std::move(engine)));
}

InProcess::InProcess(const InProcessOptions& options, const ModelConfig& model, std::unique_ptr<ModelEngine> engine)
    : options_(options), make_plan_(MakePlanFunction(model)), engine_(std::move(engine)) {}

absl::Status InProcess::Load(TrainingRequest request) {
  engine_->DropPayload(request_.update.request().request_id());
  request.update.mutable_request()->set_request_id("r" + std::to_string(++requests_));
  RETURN_IF_ERROR(
      FillAdvantages(request.update.loss(), NumbersOfRun(RunDtypeOf(options_.run.dtype())), request.groups));
  ASSIGN_OR_RETURN(plan_,
                   make_plan_(request, options_.run,
                              DefaultRates(RunDtypeOf(options_.run.dtype()), options_.run.threads(), "cpu"), {}));
  request.update.set_return_log_probs(true);  // after planning: what is run does not change
  if (options_.cluster_per_group) {
    for (v1::StepPlan& step : *plan_.plan.mutable_steps()) SplitClusters(step);
  }
  if (options_.edit_step) {
    for (v1::StepPlan& step : *plan_.plan.mutable_steps()) options_.edit_step(step);
  }
  if (options_.edit_entry_pass) options_.edit_entry_pass(*plan_.plan.mutable_log_prob_pass());
  internal::v1::PayloadChunk chunk;
  chunk.set_id(request.update.request().request_id());
  for (v1::PromptGroup& group : request.groups) *chunk.add_groups() = std::move(group);
  chunk.set_last(true);
  request.groups.clear();
  request_ = std::move(request);
  return engine_->AddPayload(std::move(chunk));
}

internal::v1::StepKey InProcess::Key(int k) const {
  internal::v1::StepKey key;
  key.set_epoch(1);
  key.set_incarnation(kIncarnation);
  key.set_generation(1);
  key.set_step(step_ + 1);
  key.set_attempt(attempt_);
  key.set_request_id(request_.update.request().request_id());
  key.set_k(static_cast<uint32_t>(k));
  return key;
}

absl::StatusOr<internal::v1::Vote> InProcess::Prepare(int k) {
  ++attempt_;
  results_.clear();
  EngineHooks hooks;
  hooks.progress = options_.progress;
  hooks.results = [this](internal::v1::ResultChunk chunk) {
    for (v1::RolloutResult& rollout : *chunk.mutable_group()->mutable_rollouts()) {
      results_[rollout.rollout_id()] = std::move(rollout);
    }
  };
  return engine_->Prepare(MakePrepare(Key(k), request_.update, plan_), hooks);
}

absl::Status InProcess::Apply(int k, const internal::v1::Vote& vote) {
  const v1::StepResult::Outcome outcome = vote.empty() ? v1::StepResult::SKIPPED_EMPTY : v1::StepResult::APPLIED;
  RETURN_IF_ERROR(engine_->Apply(MakeApply(Key(k), request_.update.adam(), plan_, vote, outcome)).status());
  if (!vote.empty()) ++step_;
  return absl::OkStatus();
}

}  // namespace stemma::testing
