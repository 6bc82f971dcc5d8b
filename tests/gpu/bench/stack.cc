#include "tests/gpu/bench/stack.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/dtype_names.h"
#include "common/base/status_macros.h"
#include "common/cost/prefix_bytes.h"
#include "common/cost/state_bytes.h"
#include "common/cost/wave_bytes.h"
#include "common/model/model_init.h"
#include "common/model/model_tensors.h"
#include "common/model/safetensors.h"
#include "server/planner/memory_division.h"
#include "server/planner/operation_work.h"
#include "server/protocol/request_plan.h"
#include "worker/engine/exceptions.h"

namespace stemma::testing {
namespace {

constexpr char kDtype[] = "bf16";
constexpr uint32_t kHeadChunkRows = 2048, kTinyHeadChunkRows = 64;
constexpr uint64_t kBudgetBytes = uint64_t{1} << 40;  // nothing that is told is refused
// The rest is for libraries' workspaces and for pieces too small to use.
constexpr double kUsableShare = 0.9;

absl::Status WriteZeros(const ModelConfig& config, const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  std::vector<safetensors::TensorEntry> entries;
  for (const TensorSpec& tensor : ModelTensors(config)) {
    entries.push_back({.name = tensor.name, .dtype = safetensors::Dtype::kBF16, .shape = tensor.shape});
  }
  const std::string header = safetensors::MakeHeader(entries, {});
  const std::string file = path + "/model.safetensors";
  std::ofstream(file, std::ios::binary) << header;
  std::filesystem::resize_file(file, entries.back().end, error);
  std::ofstream(path + "/config.json") << ModelConfigJson(config, {.dtype = safetensors::Dtype::kBF16});
  return error ? absl::InternalError(absl::StrCat(path, ": ", error.message())) : absl::OkStatus();
}

// Norms are one. Masters, where there are any, are the weights' copies.
void DrawWeights(const Weights& weights) {
  for (const Parameter& parameter : weights.parameters) {
    at::Tensor weight = parameter.weight, master = parameter.master;
    absl::StrContains(parameter.name, "norm") ? weight.fill_(1) : weight.normal_(0, 0.02);
    if (master.defined() && !parameter.master_is_weight()) master.copy_(weight);
  }
}

void DropStates(Weights& weights) {
  for (Parameter& parameter : weights.parameters) {
    parameter.exp_avg = at::Tensor();
    parameter.exp_avg_sq = at::Tensor();
    if (!parameter.master_is_weight()) parameter.master = at::Tensor();
  }
}

// The members of all waves, in waves of `size`.
void CutWaves(int64_t size, v1::Cluster& cluster) {
  std::vector<v1::Wave> waves;
  int64_t members = 0;
  for (const v1::Wave& wave : cluster.waves()) {
    for (const v1::WaveMember& member : wave.members()) {
      if (members++ % size == 0) waves.emplace_back().set_layout(wave.layout());
      *waves.back().add_members() = member;
    }
  }
  cluster.mutable_waves()->Assign(waves.begin(), waves.end());
}

TrainingRequest RequestOf(const GroupSize& size, int64_t vocab, bool dense) {
  TrainingRequest request =
      SyntheticRequest({size.prompt}, std::vector<int64_t>(static_cast<size_t>(size.rollouts), size.response), vocab);
  request.update.mutable_request()->set_schedule(dense ? v1::DENSE : v1::REUSE);
  v1::AdamParams& adam = *request.update.mutable_adam();
  adam.set_learning_rate(1e-6);
  adam.set_beta1(0.9);
  adam.set_beta2(0.999);
  adam.set_eps(1e-8);
  return request;
}

}  // namespace

int64_t LayersThatFit(const BenchRun& run, const ModelConfig& config, int64_t trajectory_tokens) {
  const double usable = kUsableShare * static_cast<double>(run.device().memory().free_bytes);
  for (int64_t layers = config.num_layers; layers > 1; --layers) {
    ModelConfig cut = config;
    cut.num_layers = layers;
    const StateBytes state = StateBytesOf(cut, RunDtypeOf(kDtype));
    const ByteShape shape = {.config = cut, .run_bytes = 2, .head_chunk_rows = kHeadChunkRows};
    WaveShape wave = {.rows = trajectory_tokens};
    AddRun({.rows = trajectory_tokens, .longest_rows = trajectory_tokens}, wave);
    const int64_t loaded = state.total(),
                  running = state.total() - state.optimizer + SuffixBytes(shape, {}, wave).peak();
    if (static_cast<double>(std::max(loaded, running)) < usable) return layers;
  }
  return 1;
}

absl::StatusOr<std::unique_ptr<Stack>> Stack::Create(const BenchRun& run, const StackOptions& options) {
  const std::string path = absl::StrCat(run.options().scratch, "/zeros");
  std::filesystem::remove_all(path);
  RETURN_IF_ERROR(WriteZeros(options.config, path));
  std::unique_ptr<Stack> stack(new Stack(options.config, run.device().memory().is_host));
  InProcessOptions in_process;
  in_process.machine_bytes = run.device().memory().free_bytes;
  v1::RunConfig& config = in_process.run;
  config.set_model(path);
  config.set_dtype(kDtype);
  config.set_head_chunk_tokens(run.options().tiny ? kTinyHeadChunkRows : kHeadChunkRows);
  config.set_memory_budget_bytes(kBudgetBytes);
  config.set_optimizer_residency(options.residency);
  // On CPUs each thread has scratch of its own in attention, which the planned bytes count.
  if (run.options().device == "cpu") config.set_threads(static_cast<uint32_t>(at::get_num_threads()));
  const StateBytes state = StateBytesOf(options.config, RunDtypeOf(kDtype));
  config.set_host_memory_bytes(static_cast<uint64_t>(state.host(options.residency) + options.host_tape_bytes));
  in_process.edit_step = [raw = stack.get()](v1::StepPlan& step) { raw->Force(step); };
  ASSIGN_OR_RETURN(stack->engine_, InProcess::Create(in_process, run.MakeBackend(options.config)));
  stack->run_ = config;
  std::filesystem::remove_all(path);
  RETURN_IF_ERROR(CatchExceptions([&] {
    if (!options.keeps_states) DropStates(const_cast<Weights&>(stack->engine_->weights()));
    DrawWeights(stack->engine_->weights());
    return absl::OkStatus();
  }));
  return stack;
}

void Stack::Force(v1::StepPlan& step) const {
  for (v1::Cluster& cluster : *step.mutable_clusters()) {
    cluster.set_prefix_policy(way_.prefix);
    cluster.set_suffix_policy(way_.suffix);
    cluster.set_prefix_block_rows(static_cast<uint32_t>(way_.block_rows));
    cluster.set_offload_prefix(way_.offload);
    cluster.set_offload_headroom_bytes(static_cast<uint64_t>(way_.headroom_bytes));
    CutWaves(way_.wave_suffixes, cluster);
  }
}

// Reads the clusters as they were forced: the plan's own report is of those before.
std::array<int64_t, 3> Stack::PlannedBytes(const TrainingRequest& request) const {
  const std::vector<server::PlannerGroup> groups = server::PlannerRequestOf(request, run_).groups;
  const ByteShape shape = server::MemoryOptionsOf(config_, run_, Rates{}, /*forward_only=*/false).shape;
  std::array<int64_t, 3> most{};
  for (const v1::Cluster& cluster : engine_->plan().plan.steps(0).clusters()) {
    const server::ClusterOperations operations(groups, cluster, /*cp=*/1, /*forward_only=*/false);
    PrefixShape prefix = operations.prefix();
    prefix.headroom_bytes = static_cast<int64_t>(cluster.offload_headroom_bytes());
    if (operations.has_prefixes()) {
      most[0] = std::max(most[0], PrefixForwardBytes(shape, prefix).peak());
      most[2] = std::max(most[2], PrefixBackwardBytes(shape, prefix).peak());
    }
    for (const v1::Wave& wave : cluster.waves()) {
      const WaveShape rows = operations.ShapeOf(wave, operations.MembersOf(wave));
      most[1] = std::max(most[1], SuffixBytes(shape, prefix, rows).peak());
    }
  }
  return most;
}

absl::StatusOr<GroupRun> Stack::Run(const GroupSize& size, const GroupWay& way) {
  way_ = way;
  const TrainingRequest request = RequestOf(size, config_.vocab_size, way.dense);
  RETURN_IF_ERROR(engine_->Load(request));
  GroupRun run;
  run.planned_bytes = PlannedBytes(request);
  const double begin_s = RealClock().MonotonicSeconds();
  ASSIGN_OR_RETURN(run.vote, engine_->Prepare(0));
  run.wall_seconds = RealClock().MonotonicSeconds() - begin_s;
  if (run.vote.no_reason() == internal::v1::OUT_OF_MEMORY) return absl::ResourceExhaustedError(run.vote.message());
  if (!run.vote.yes()) return absl::InternalError(run.vote.message());
  const internal::v1::StepSums& sums = run.vote.sums();
  run.seconds = sums.prefix_forward_s() + sums.suffix_s() + sums.prefix_backward_s();
  return run;
}

absl::StatusOr<double> Stack::Apply(const GroupRun& last) {
  const double begin_s = RealClock().MonotonicSeconds();
  RETURN_IF_ERROR(engine_->Apply(0, last.vote));
  return RealClock().MonotonicSeconds() - begin_s;
}

}  // namespace stemma::testing
