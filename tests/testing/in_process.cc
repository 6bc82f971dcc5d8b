#include "tests/testing/in_process.h"

#include <ATen/Parallel.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <random>
#include <thread>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/admission/normalization.h"
#include "common/base/arrays.h"
#include "common/base/status_macros.h"
#include "common/model/model_directory.h"
#include "glog/logging.h"
#include "server/planner/memory_division.h"
#include "server/planner/parameter_sweeps.h"
#include "server/protocol/rank_parts.h"
#include "server/protocol/step_messages.h"
#include "server/protocol/verification.h"
#include "server/protocol/vote_merge.h"
#include "tests/testing/clear_sweeps.h"
#include "tests/testing/draw_stages.h"
#include "tests/testing/lone_rank.h"
#include "tests/testing/thread_communicator.h"

namespace stemma::testing {
namespace {

constexpr char kIncarnation[] = "in-process";
constexpr absl::Duration kRankWaitsAtMost = absl::Minutes(2);

// Runs each rank on a thread of its own; a single one on the caller's.
absl::Status OnRanks(const InProcessOptions& options, size_t ranks, const std::function<absl::Status(size_t)>& run) {
  if (ranks == 1) return run(0);
  std::vector<absl::Status> statuses(ranks);
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      if (options.run.threads() > 0) at::set_num_threads(static_cast<int>(options.run.threads()));  // a thread's own
      statuses[rank] = run(rank);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& status : statuses) RETURN_IF_ERROR(status);
  return absl::OkStatus();
}

EngineParts PartsOf(const InProcessOptions& options, MeshRanks ranks, std::unique_ptr<CopyEngine> copies) {
  if (options.edit_communicator) ranks.data = options.edit_communicator(std::move(ranks.data));
  if (options.edit_cp_communicator) ranks.cp = options.edit_cp_communicator(std::move(ranks.cp));
  if (options.edit_pp_communicator) ranks.pp = options.edit_pp_communicator(std::move(ranks.pp));
  if (options.edit_tp_communicator) {
    for (std::unique_ptr<Communicator>* axis : {&ranks.tp, &ranks.kv}) {
      if ((*axis)->size() > 1) *axis = options.edit_tp_communicator(std::move(*axis));
    }
  }
  EngineParts parts = {.copy_engine = std::move(copies), .ranks = std::move(ranks)};
  if (options.make_tensor_parallel) parts.tensor_parallel = options.make_tensor_parallel(*parts.ranks.tp);
  parts.bucket_elements = options.bucket_elements;
  return parts;
}

// Makes a cluster of each group, in the order of the groups and rollouts, so that the order of sums is not the plan's.
// Waves that are cut by rows stay first.
void MakeClusterPerGroup(v1::StepPlan& step) {
  SplitClusters(step, [](uint32_t group) { return group; });
  const auto place = [](const v1::Wave& wave) {
    return std::tuple(!wave.cut_rows(), wave.members(0).group(), wave.members(0).rollout());
  };
  for (v1::Cluster& cluster : *step.mutable_clusters()) {
    std::stable_sort(cluster.mutable_waves()->begin(), cluster.mutable_waves()->end(),
                     [&](const v1::Wave& a, const v1::Wave& b) { return place(a) < place(b); });
  }
  const auto group_of = [](const v1::Cluster& cluster) { return cluster.waves(0).members(0).group(); };
  std::stable_sort(step.mutable_clusters()->begin(), step.mutable_clusters()->end(),
                   [&](const v1::Cluster& a, const v1::Cluster& b) { return group_of(a) < group_of(b); });
}

}  // namespace

absl::StatusOr<std::unique_ptr<InProcess>> InProcess::Create(const InProcessOptions& options, Backend backend,
                                                             std::unique_ptr<CopyEngine> copies) {
  const v1::Mesh& mesh = options.run.mesh();
  const size_t ranks = options.lone_rank ? 1 : NumRanks(mesh);
  CHECK(ranks == 1 || copies == nullptr) << "a copy engine of its own is one rank's";
  ASSIGN_OR_RETURN(const ModelDirectory directory, OpenModelDirectory(options.run.model()));
  const ShardPlace place = {.tp_size = TpSize(mesh), .ep_size = EpSize(mesh)};
  ASSIGN_OR_RETURN(const ModelShard shard, MakeModelShard(directory.config, place));
  InProcessOptions divided = options;
  ASSIGN_OR_RETURN(divided.run,
                   DivideMemory(directory.config, {.device_free_bytes = options.machine_bytes}, options.run));
  internal::v1::Configure configure;
  configure.set_epoch(1);
  configure.set_generation(1);
  *configure.mutable_config() = divided.run;
  configure.set_data_directory(options.data_directory);
  configure.set_checkpoint(options.checkpoint);
  configure.set_step(options.step);
  std::vector<MeshRanks> mesh_ranks;
  if (options.lone_rank) {
    mesh_ranks.push_back(
        MakeLoneRank(mesh, shard.kv_replicas(), options.lone_cp_rank, options.lone_pp_rank, options.lone_tp_rank));
  } else {
    mesh_ranks = MakeThreadMesh(mesh, shard.kv_replicas(), kRankWaitsAtMost);
  }
  std::vector<EngineParts> parts;  // made here: a test's edits are not meant for several threads
  for (size_t rank = 0; rank < ranks; ++rank) {
    parts.push_back(PartsOf(options, std::move(mesh_ranks[rank]), ranks == 1 ? std::move(copies) : nullptr));
  }
  std::vector<std::unique_ptr<ModelEngine>> engines(ranks);
  RETURN_IF_ERROR(OnRanks(options, ranks, [&](size_t rank) -> absl::Status {
    internal::v1::Configure of_rank = configure;
    of_rank.set_rank(static_cast<uint32_t>(rank));
    ASSIGN_OR_RETURN(engines[rank], ModelEngine::Create(of_rank, kIncarnation, backend, std::move(parts[rank])));
    const_cast<Weights&>(engines[rank]->weights()).vocabulary_begin += options.vocabulary_shift;
    return absl::OkStatus();
  }));
  return std::unique_ptr<InProcess>(new InProcess(divided, directory.config, std::move(engines)));
}

InProcess::InProcess(const InProcessOptions& options, const ModelConfig& model,
                     std::vector<std::unique_ptr<ModelEngine>> engines)
    : options_(options),
      model_(model),
      make_plan_(MakePlanFunction(model)),
      engines_(std::move(engines)),
      step_(options.step) {}

absl::Status InProcess::OnEachRank(const std::function<absl::Status(int rank)>& run) const {
  return OnRanks(options_, engines_.size(), [&](size_t rank) { return run(static_cast<int>(rank)); });
}

absl::Status InProcess::Load(TrainingRequest request) {
  const std::string last_id = request_.update.request().request_id();
  request.update.mutable_request()->set_request_id("r" + std::to_string(++requests_));
  RETURN_IF_ERROR(
      FillAdvantages(request.update.loss(), NumbersOfRun(RunDtypeOf(options_.run.dtype())), request.groups));
  ASSIGN_OR_RETURN(plan_,
                   make_plan_(request, options_.run,
                              DefaultRates(RunDtypeOf(options_.run.dtype()), options_.run.threads(), "cpu"), {}));
  const bool verifies = plan_.dense != nullptr;
  request.update.set_return_log_probs(!verifies);  // after planning: what is run does not change
  num_rollouts_.clear();
  for (const v1::PromptGroup& group : request.groups) num_rollouts_.push_back(group.rollouts_size());
  EditPlan(request);
  const auto num_groups = static_cast<uint32_t>(request.groups.size());
  verified_ = verifies ? std::make_shared<const TrainingRequest>(request) : nullptr;
  const auto groups = verifies
                          ? server::PayloadGroupsOfRuns(plan_, num_groups, options_.run.mesh())
                          : ForRanks(PayloadGroupsOfRanks(plan_.plan, num_groups, static_cast<uint32_t>(num_copies())),
                                     options_.run.mesh());
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

void InProcess::EditPlan(const TrainingRequest& request) {
  // Edits are made as if parameters were whole; in the end all copies share their sweeps.
  for (v1::StepPlan& step : *plan_.plan.mutable_steps()) {
    if (sharded()) ClearSweeps(step);
    if (options_.cluster_per_group) MakeClusterPerGroup(step);
  }
  v1::StepPlan* const pass = plan_.plan.has_log_prob_pass() ? plan_.plan.mutable_log_prob_pass() : nullptr;
  if (pass != nullptr && sharded()) ClearSweeps(*pass);
  if (options_.placement_seed != 0) DrawPlacement(request.groups.size());
  for (v1::StepPlan& step : *plan_.plan.mutable_steps()) {
    EditStep(request, step);
    const bool planned = !options_.cluster_per_group && options_.placement_seed == 0 && options_.context.seed == 0 &&
                         options_.split.seed == 0;
    if (options_.stage_seed != 0 || !planned) DrawStages(options_.stage_seed, options_.run.mesh(), step);
    if (options_.edit_step) options_.edit_step(step);
  }
  if (pass == nullptr) return;
  EditStep(request, *pass);
  if (options_.edit_entry_pass) options_.edit_entry_pass(*pass);
}

void InProcess::EditStep(const TrainingRequest& request, v1::StepPlan& step) const {
  const v1::Mesh& mesh = options_.run.mesh();
  DrawSplits(options_.split, num_copies(), step);
  ContextGroups groups;
  std::vector<int64_t> prefix_rows;
  for (const v1::PromptGroup& group : request.groups) {
    prefix_rows.push_back(TokenArray(group.prompt_tokens()).size() - 1);
    ContextGroup& sizes = groups.emplace_back(ContextGroup{prefix_rows.back(), {}});
    for (const v1::Rollout& rollout : group.rollouts()) {
      sizes.response_rows.push_back(TokenArray(rollout.response_tokens()).size());
    }
  }
  DrawContext(options_.context, static_cast<int>(CpSize(mesh)), groups, step);
  if (!sharded()) return;
  server::ShareSweeps(prefix_rows, {DpSize(mesh), CpSize(mesh)}, step);
}

// The same waves in the same ways, cut where the rank changes.
void InProcess::DrawPlacement(size_t num_groups) {
  std::mt19937 random(options_.placement_seed);
  std::vector<uint32_t> rank_of;
  for (size_t i = 0; i < num_groups; ++i)
    rank_of.push_back(static_cast<uint32_t>(random() % static_cast<size_t>(num_copies())));
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
    MutexLock lock(&results_mutex_);
    for (v1::RolloutResult& rollout : *chunk.mutable_group()->mutable_rollouts()) {
      const std::string id = rollout.rollout_id();
      CHECK(results_.emplace(id, std::move(rollout)).second) << id << ": two ranks tell of it";
    }
  };
  options_.edit_hooks(rank, hooks);
  return hooks;
}

std::vector<internal::v1::Prepare> InProcess::PreparesBy(const RequestPlan& plan, int k) const {
  return ForRanks(
      PreparesOfRanks(MakePrepare(Key(k), request_.update, plan), static_cast<uint32_t>(num_copies()), num_rollouts_),
      options_.run.mesh());
}

absl::StatusOr<v1::VerifyGroupResponse> InProcess::Verify() {
  const auto plan = std::make_shared<const RequestPlan>(plan_);
  server::Verification verification(verified_, plan, model_, options_.run.mesh());
  std::vector<internal::v1::Prepare> reuse = PreparesBy(*plan, 0), dense = PreparesBy(*plan->dense, 0);
  Mutex mutex;
  const auto told = [&](const std::function<absl::Status()>& tell) {
    MutexLock lock(&mutex);
    return tell();
  };
  RETURN_IF_ERROR(OnEachRank([&](int rank) -> absl::Status {
    const auto r = static_cast<size_t>(rank);
    EngineHooks hooks = Hooks(rank);
    hooks.results = [&](const internal::v1::ResultChunk& chunk) {
      const absl::Status status = told([&] { return verification.AddResult(chunk); });
      CHECK(status.ok()) << status;
    };
    ASSIGN_OR_RETURN(internal::v1::VerifyDone done,
                     engines_[r]->Verify(server::MakeVerify(request_.update.request().request_id(), std::move(reuse[r]),
                                                            std::move(dense[r])),
                                         hooks));
    return told([&] { return verification.Add(static_cast<uint32_t>(rank), std::move(done)); });
  }));
  return verification.Answer();
}

absl::StatusOr<internal::v1::Vote> InProcess::Prepare(int k) {
  ++attempt_;
  results_.clear();
  std::vector<internal::v1::Prepare> prepares = PreparesBy(plan_, k);
  for (int rank = 0; rank < num_ranks(); ++rank) options_.edit_prepare(rank, prepares[static_cast<size_t>(rank)]);
  votes_.assign(engines_.size(), {});
  RETURN_IF_ERROR(OnEachRank([&](int rank) -> absl::Status {
    const auto r = static_cast<size_t>(rank);
    absl::StatusOr<internal::v1::Vote> vote = engines_[r]->Prepare(prepares[r], Hooks(rank));
    if (absl::IsUnavailable(vote.status())) engines_[r].reset();  // as its process ends
    if (vote.ok()) votes_[r] = *std::move(vote);
    return vote.status();
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

int InProcess::RankOf(int part, int data_rank) const {
  const v1::Mesh& mesh = options_.run.mesh();
  const int tp = static_cast<int>(TpSize(mesh)), cp = static_cast<int>(CpSize(mesh)),
            pp = static_cast<int>(PpSize(mesh));
  return ((data_rank / cp * pp + part / tp) * cp + data_rank % cp) * tp + part % tp;
}

at::Tensor InProcess::FromOwners(int parameter, int part, ElementsOfParameter elements) const {
  const Weights& own = weights(RankOf(part));
  const OptimizerShards shards = ShardsOf(own, data_ranks(), options_.bucket_elements);
  at::Tensor values = at::zeros(own.at(parameter).weight.sizes(), own.accumulate_dtype);
  for (int data_rank = 0; data_rank < data_ranks(); ++data_rank) {
    for (const ParameterRange& r : shards.owned(data_rank)) {
      if (r.parameter != parameter) continue;
      const Parameter& of_owner = weights(RankOf(part, data_rank)).at(parameter);
      Parameter::Elements(values, r.begin, r.count).copy_((of_owner.*elements)(r.begin, r.count));
    }
  }
  return values;
}

at::Tensor InProcess::Gradient(int parameter, int part) const {
  return FromOwners(parameter, part, &Parameter::GradElements);
}

at::Tensor InProcess::Master(int parameter, int part) const {
  const Weights& own = weights(RankOf(part));
  return own.is_sharded() ? FromOwners(parameter, part, &Parameter::MasterElements) : own.at(parameter).master;
}

absl::StatusOr<at::Tensor> InProcess::Assemble(
    const TensorSpec& tensor, const std::function<at::Tensor(int part, const HfTensor& of)>& box_of) const {
  at::Tensor whole = at::zeros(tensor.shape, weights().parameters.front().grad.options());
  at::Tensor held = at::zeros(tensor.shape, at::kBool);
  for (int part = 0; part < num_parts(); ++part) {
    const std::vector<HfTensor>& tensors = weights(RankOf(part)).hf_tensors;
    const auto found =
        std::find_if(tensors.begin(), tensors.end(), [&](const HfTensor& t) { return t.name == tensor.name; });
    if (found == tensors.end()) continue;  // another stage's
    const HfTensor& of = *found;
    const auto place = [&](const at::Tensor& x) {
      const at::Tensor rows = x.slice(0, of.box.row_begin, of.box.row_end);
      return x.dim() > 1 ? rows.slice(1, of.box.column_begin, of.box.column_end) : rows;
    };
    const at::Tensor box = box_of(part, of).to(whole.scalar_type());
    if (place(held).any().item<bool>() && !place(whole).equal(box)) {
      return absl::InternalError(absl::StrCat(tensor.name, ": rank ", RankOf(part), " has other bits than another"));
    }
    place(whole).copy_(box);
    place(held).fill_(true);
  }
  CHECK(held.all().item<bool>()) << tensor.name;
  return whole;
}

absl::StatusOr<at::Tensor> InProcess::HfGradient(const TensorSpec& tensor) const {
  return Assemble(tensor, [&](int part, const HfTensor& of) {
    return Gradient(of.parameter, part).slice(0, of.row_begin, of.row_end);
  });
}

absl::StatusOr<at::Tensor> InProcess::HfMaster(const TensorSpec& tensor) const {
  return Assemble(tensor, [&](int part, const HfTensor& of) {
    return Master(of.parameter, part).slice(0, of.row_begin, of.row_end);
  });
}

}  // namespace stemma::testing
