#include "tests/testing/in_process.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <random>
#include <thread>
#include <utility>

#include "common/admission/normalization.h"
#include "common/base/status_macros.h"
#include "common/model/model_directory.h"
#include "glog/logging.h"
#include "server/planner/memory_division.h"
#include "server/protocol/rank_parts.h"
#include "server/protocol/step_messages.h"
#include "server/protocol/vote_merge.h"
#include "worker/parallel/thread_communicator.h"

namespace stemma::testing {
namespace {

constexpr char kIncarnation[] = "in-process";
constexpr absl::Duration kRankWaitsAtMost = absl::Minutes(2);
constexpr int64_t kMachineBytes = int64_t{64} << 30;  // that the planner believes in

}  // namespace

absl::StatusOr<std::unique_ptr<InProcess>> InProcess::Create(const InProcessOptions& options, Backend backend,
                                                             std::unique_ptr<CopyEngine> copies) {
  const int ranks = std::max(static_cast<int>(options.run.mesh().dp()), 1);
  CHECK(ranks == 1 || copies == nullptr) << "a copy engine of its own is one rank's";
  ASSIGN_OR_RETURN(const ModelDirectory directory, OpenModelDirectory(options.run.model()));
  InProcessOptions divided = options;
  ASSIGN_OR_RETURN(divided.run, DivideMemory(directory.config, {.device_free_bytes = kMachineBytes}, options.run));
  internal::v1::Configure configure;
  configure.set_epoch(1);
  configure.set_generation(1);
  *configure.mutable_config() = divided.run;
  configure.set_data_directory(options.data_directory);
  configure.set_checkpoint(options.checkpoint);
  configure.set_step(options.step);
  std::vector<std::unique_ptr<ModelEngine>> engines;
  for (std::unique_ptr<Communicator>& dp : MakeThreadRanks(ranks, kRankWaitsAtMost)) {
    if (options.edit_communicator) dp = options.edit_communicator(std::move(dp));
    ASSIGN_OR_RETURN(engines.emplace_back(), ModelEngine::Create(configure, kIncarnation, backend, std::move(copies),
                                                                 std::move(dp), options.bucket_elements));
  }
  const ModelConfig model = engines.front()->weights().config;
  return std::unique_ptr<InProcess>(new InProcess(divided, model, std::move(engines)));
}

InProcess::InProcess(const InProcessOptions& options, const ModelConfig& model,
                     std::vector<std::unique_ptr<ModelEngine>> engines)
    : options_(options), make_plan_(MakePlanFunction(model)), engines_(std::move(engines)), step_(options.step) {}

absl::Status InProcess::OnEachRank(const std::function<absl::Status(int rank)>& run) const {
  if (engines_.size() == 1) return run(0);
  std::vector<absl::Status> statuses(engines_.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < engines_.size(); ++rank) {
    threads.emplace_back([&, rank] {
      if (options_.run.threads() > 0) at::set_num_threads(static_cast<int>(options_.run.threads()));  // a thread's own
      statuses[rank] = run(static_cast<int>(rank));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& status : statuses) RETURN_IF_ERROR(status);
  return absl::OkStatus();
}

absl::Status InProcess::Load(TrainingRequest request) {
  const std::string last_id = request_.update.request().request_id();
  request.update.mutable_request()->set_request_id("r" + std::to_string(++requests_));
  RETURN_IF_ERROR(
      FillAdvantages(request.update.loss(), NumbersOfRun(RunDtypeOf(options_.run.dtype())), request.groups));
  ASSIGN_OR_RETURN(plan_,
                   make_plan_(request, options_.run,
                              DefaultRates(RunDtypeOf(options_.run.dtype()), options_.run.threads(), "cpu"), {}));
  request.update.set_return_log_probs(true);  // after planning: what is run does not change
  num_rollouts_.clear();
  for (const v1::PromptGroup& group : request.groups) num_rollouts_.push_back(group.rollouts_size());
  for (v1::StepPlan& step : *plan_.plan.mutable_steps()) {
    if (options_.cluster_per_group) SplitClusters(step, [](uint32_t group) { return group; });
  }
  if (options_.placement_seed != 0) DrawPlacement(request.groups.size());
  for (v1::StepPlan& step : *plan_.plan.mutable_steps()) DrawSplits(options_.split, num_ranks(), step);
  if (plan_.plan.has_log_prob_pass()) DrawSplits(options_.split, num_ranks(), *plan_.plan.mutable_log_prob_pass());
  for (v1::StepPlan& step : *plan_.plan.mutable_steps()) {
    if (options_.edit_step) options_.edit_step(step);
  }
  if (options_.edit_entry_pass) options_.edit_entry_pass(*plan_.plan.mutable_log_prob_pass());
  const auto groups = PayloadGroupsOfRanks(plan_.plan, static_cast<uint32_t>(request.groups.size()),
                                           static_cast<uint32_t>(engines_.size()));
  for (size_t rank = 0; rank < engines_.size(); ++rank) {
    engines_[rank]->DropPayload(last_id);
    internal::v1::PayloadChunk chunk;
    chunk.set_id(request.update.request().request_id());
    for (const uint32_t group : groups[rank]) {
      chunk.add_group_indices(group);
      *chunk.add_groups() = request.groups[group];
    }
    chunk.set_last(true);
    RETURN_IF_ERROR(engines_[rank]->AddPayload(std::move(chunk)));
  }
  request_ = std::move(request);
  request_.groups.clear();
  return absl::OkStatus();
}

// The same waves in the same ways, cut where the rank changes.
void InProcess::DrawPlacement(size_t num_groups) {
  std::mt19937 random(options_.placement_seed);
  std::vector<uint32_t> rank_of;
  for (size_t i = 0; i < num_groups; ++i) rank_of.push_back(static_cast<uint32_t>(random() % engines_.size()));
  const auto place = [&](v1::StepPlan& step) {
    SplitClusters(step, [&](uint32_t group) { return rank_of[group]; });
    for (v1::Cluster& cluster : *step.mutable_clusters()) {
      cluster.set_dp_rank(rank_of[cluster.waves(0).members(0).group()]);
    }
  };
  for (v1::StepPlan& step : *plan_.plan.mutable_steps()) place(step);
  if (plan_.plan.has_log_prob_pass()) place(*plan_.plan.mutable_log_prob_pass());
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

EngineHooks InProcess::Hooks(int rank) {
  EngineHooks hooks;
  hooks.progress = options_.progress;
  hooks.results = [this](internal::v1::ResultChunk chunk) {
    absl::MutexLock lock(&results_mutex_);
    for (v1::RolloutResult& rollout : *chunk.mutable_group()->mutable_rollouts()) {
      results_[rollout.rollout_id()] = std::move(rollout);
    }
  };
  options_.edit_hooks(rank, hooks);
  return hooks;
}

absl::StatusOr<internal::v1::Vote> InProcess::Prepare(int k) {
  ++attempt_;
  results_.clear();
  std::vector<internal::v1::Prepare> prepares = PreparesOfRanks(MakePrepare(Key(k), request_.update, plan_),
                                                                static_cast<uint32_t>(engines_.size()), num_rollouts_);
  for (int rank = 0; rank < num_ranks(); ++rank) options_.edit_prepare(rank, prepares[static_cast<size_t>(rank)]);
  votes_.assign(engines_.size(), {});
  RETURN_IF_ERROR(OnEachRank([&](int rank) -> absl::Status {
    const auto r = static_cast<size_t>(rank);
    ASSIGN_OR_RETURN(votes_[r], engines_[r]->Prepare(prepares[r], Hooks(rank)));
    return absl::OkStatus();
  }));
  return MergeVotes(votes_);
}

absl::Status InProcess::Apply(int k, const internal::v1::Vote& vote) {
  const v1::StepResult::Outcome outcome = vote.empty() ? v1::StepResult::SKIPPED_EMPTY : v1::StepResult::APPLIED;
  const internal::v1::Apply apply =
      MakeApply(Key(k), request_.update.adam(), plan_, DecideStep(request_.update.adam(), vote, outcome));
  RETURN_IF_ERROR(OnEachRank([&](int rank) { return engines_[static_cast<size_t>(rank)]->Apply(apply).status(); }));
  if (!vote.empty()) ++step_;
  return absl::OkStatus();
}

at::Tensor InProcess::Gradient(int parameter) const {
  const OptimizerShards shards(ElementsOf(weights().parameters), num_ranks(), options_.bucket_elements);
  at::Tensor gradient = weights().at(parameter).grad.clone();
  for (int rank = 0; rank < num_ranks(); ++rank) {
    for (const ParameterRange& r : shards.owned(rank)) {
      if (r.parameter != parameter) continue;
      Parameter::Elements(gradient, r.begin, r.count)
          .copy_(Parameter::Elements(weights(rank).at(parameter).grad, r.begin, r.count));
    }
  }
  return gradient;
}

}  // namespace stemma::testing
