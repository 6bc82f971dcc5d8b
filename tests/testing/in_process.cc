#include "tests/testing/in_process.h"

#include <ATen/Parallel.h>

#include <random>
#include <thread>
#include <utility>

#include "common/admission/normalization.h"
#include "common/base/status_macros.h"
#include "common/model/model_directory.h"
#include "glog/logging.h"
#include "server/planner/memory_division.h"
#include "server/protocol/step_messages.h"
#include "server/protocol/vote_merge.h"
#include "worker/parallel/thread_communicator.h"

namespace stemma::testing {
namespace {

constexpr char kIncarnation[] = "in-process";
constexpr absl::Duration kRankWaitsAtMost = absl::Minutes(2);
constexpr int64_t kMachineBytes = int64_t{64} << 30;  // that the planner believes in

// One cluster for each key of groups: the same waves, cut where the key changes.
void SplitClusters(v1::StepPlan& step, const std::function<int64_t(uint32_t group)>& key_of) {
  v1::StepPlan split;
  for (const v1::Cluster& cluster : step.clusters()) {
    v1::Cluster policies = cluster;
    policies.clear_prefix_groups();
    policies.clear_waves();
    std::map<int64_t, v1::Cluster> by_key;
    for (const v1::Wave& wave : cluster.waves()) {
      for (const v1::WaveMember& member : wave.members()) by_key[key_of(member.group())] = policies;
    }
    for (const uint32_t g : cluster.prefix_groups()) by_key[key_of(g)].add_prefix_groups(g);
    for (const v1::Wave& wave : cluster.waves()) {
      std::map<int64_t, v1::Wave> parts;
      for (const v1::WaveMember& member : wave.members()) *parts[key_of(member.group())].add_members() = member;
      for (auto& [key, part] : parts) {
        part.set_layout(wave.layout());
        *by_key[key].add_waves() = std::move(part);
      }
    }
    for (auto& [key, part] : by_key) *split.add_clusters() = std::move(part);
  }
  step.mutable_clusters()->Swap(split.mutable_clusters());
}

}  // namespace

absl::StatusOr<std::unique_ptr<InProcess>> InProcess::Create(const InProcessOptions& options, Backend backend,
                                                             std::unique_ptr<CopyEngine> copies) {
  CHECK(options.ranks == 1 || copies == nullptr) << "a copy engine of its own is one rank's";
  ASSIGN_OR_RETURN(const ModelDirectory directory, OpenModelDirectory(options.run.model()));
  InProcessOptions divided = options;
  ASSIGN_OR_RETURN(divided.run, DivideMemory(directory.config, {.device_free_bytes = kMachineBytes}, options.run));
  internal::v1::Configure configure;
  configure.set_epoch(1);
  configure.set_generation(1);
  *configure.mutable_config() = divided.run;
  std::vector<std::unique_ptr<ModelEngine>> engines;
  for (std::unique_ptr<Communicator>& dp : MakeThreadRanks(options.ranks, kRankWaitsAtMost)) {
    if (options.edit_communicator) dp = options.edit_communicator(std::move(dp));
    ASSIGN_OR_RETURN(engines.emplace_back(),
                     ModelEngine::Create(configure, kIncarnation, backend, std::move(copies), std::move(dp)));
  }
  const ModelConfig model = engines.front()->weights().config;
  return std::unique_ptr<InProcess>(new InProcess(divided, model, std::move(engines)));
}

InProcess::InProcess(const InProcessOptions& options, const ModelConfig& model,
                     std::vector<std::unique_ptr<ModelEngine>> engines)
    : options_(options), make_plan_(MakePlanFunction(model)), engines_(std::move(engines)) {}

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
  std::mt19937 random(options_.placement_seed);
  rank_of_.clear();
  num_rollouts_.clear();
  for (const v1::PromptGroup& group : request.groups) {
    rank_of_.push_back(static_cast<int>(random() % engines_.size()));
    num_rollouts_.push_back(group.rollouts_size());
  }
  for (v1::StepPlan& step : *plan_.plan.mutable_steps()) {
    if (options_.cluster_per_group) SplitClusters(step, [](uint32_t group) { return group; });
    if (options_.edit_step) options_.edit_step(step);
  }
  if (options_.edit_entry_pass) options_.edit_entry_pass(*plan_.plan.mutable_log_prob_pass());
  internal::v1::PayloadChunk chunk;
  chunk.set_id(request.update.request().request_id());
  for (v1::PromptGroup& group : request.groups) *chunk.add_groups() = std::move(group);
  chunk.set_last(true);
  request.groups.clear();
  request_ = std::move(request);
  for (size_t rank = 0; rank < engines_.size(); ++rank) {
    engines_[rank]->DropPayload(last_id);
    RETURN_IF_ERROR(engines_[rank]->AddPayload(rank + 1 < engines_.size() ? chunk : std::move(chunk)));
  }
  return absl::OkStatus();
}

// The groups of a rank, and their clusters.
v1::StepPlan InProcess::PartOf(const v1::StepPlan& step, int rank) const {
  if (engines_.size() == 1) return step;
  const auto rank_of = [&](uint32_t group) { return rank_of_[group]; };
  v1::StepPlan split = step, part;
  SplitClusters(split, rank_of);
  for (const uint32_t group : step.groups()) {
    if (rank_of(group) == rank) part.add_groups(group);
  }
  for (v1::Cluster& cluster : *split.mutable_clusters()) {
    if (rank_of(cluster.waves(0).members(0).group()) == rank) *part.add_clusters() = std::move(cluster);
  }
  return part;
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

EngineHooks InProcess::Hooks() {
  EngineHooks hooks;
  hooks.progress = options_.progress;
  hooks.results = [this](internal::v1::ResultChunk chunk) {
    absl::MutexLock lock(&results_mutex_);
    for (v1::RolloutResult& rollout : *chunk.mutable_group()->mutable_rollouts()) {
      results_[rollout.rollout_id()] = std::move(rollout);
    }
  };
  return hooks;
}

absl::StatusOr<internal::v1::Vote> InProcess::Prepare(int k) {
  ++attempt_;
  results_.clear();
  const internal::v1::Prepare whole = MakePrepare(Key(k), request_.update, plan_);
  votes_.assign(engines_.size(), {});
  RETURN_IF_ERROR(OnEachRank([&](int rank) -> absl::Status {
    const internal::v1::Prepare prepare =
        PrepareOfRank(whole, PartOf(whole.plan(), rank), PartOf(whole.log_prob_pass(), rank), num_rollouts_);
    ASSIGN_OR_RETURN(votes_[static_cast<size_t>(rank)], engines_[static_cast<size_t>(rank)]->Prepare(prepare, Hooks()));
    return absl::OkStatus();
  }));
  return MergeVotes(votes_);
}

absl::Status InProcess::Apply(int k, const internal::v1::Vote& vote) {
  const v1::StepResult::Outcome outcome = vote.empty() ? v1::StepResult::SKIPPED_EMPTY : v1::StepResult::APPLIED;
  const internal::v1::Apply apply = MakeApply(Key(k), request_.update.adam(), plan_, vote, outcome);
  RETURN_IF_ERROR(OnEachRank([&](int rank) { return engines_[static_cast<size_t>(rank)]->Apply(apply).status(); }));
  if (!vote.empty()) ++step_;
  return absl::OkStatus();
}

at::Tensor InProcess::Gradient(int parameter) const {
  const OptimizerShards shards(ElementsOf(weights().parameters), options_.ranks);
  at::Tensor gradient = weights().at(parameter).grad.clone();
  for (int rank = 0; rank < options_.ranks; ++rank) {
    for (const ParameterRange& r : shards.owned(rank)) {
      if (r.parameter != parameter) continue;
      Parameter::Elements(gradient, r.begin, r.count)
          .copy_(Parameter::Elements(weights(rank).at(parameter).grad, r.begin, r.count));
    }
  }
  return gradient;
}

}  // namespace stemma::testing
