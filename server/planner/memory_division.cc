#include "server/planner/memory_division.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/human.h"
#include "common/base/mesh.h"
#include "common/base/status_macros.h"
#include "common/cost/block_cost.h"
#include "common/cost/memory_choices.h"
#include "common/cost/rank_shape.h"
#include "common/cost/state_bytes.h"

namespace stemma::server {
namespace {

// Share of the budget that sharding must free to be chosen: it costs links in every sweep.
constexpr int64_t kWorthShardingParts = 8;
// Shares of what is free on a machine whose memory is host and device in one; other programs keep the rest.
constexpr int64_t kSharedActivationParts = 2, kSharedHostParts = 4;
// The head's chunks on a device with memory of its own. There the sum of the head's weight gradient is read and written
// once a chunk, which takes longer than a product of 512 rows does; logits may take so small a part of the memory for
// it.
constexpr int64_t kDeviceChunkRows[] = {2048, 1024};
constexpr int64_t kDeviceChunkParts = 64;

// Where products run in tiles, a wave's own cost is worth so small a part of its products' forward and backward.
constexpr double kWaveCostParts = 64;
constexpr int64_t kWaveRowsMax = 16 * kWaveRows;  // where the fitted rates of products are next to nothing

// Returns the rows worth packing on a device of these rates. A wave passes over each weight and its gradient once,
// and of each row there are two FLOPs of a weight forward and four backward, so of the model it matters alone how many
// weights there are for each one that a row is multiplied with.
int64_t RowsWorthPacking(const ModelConfig& config, const Rates& rates) {
  if (rates.row_quantum == 1) return kWaveRows;
  const double row_s = 6 * rates[kLinear];
  const double wave_s = kWaveCostParts * (rates[kWave] + rates[kWaveBackward]) * WeightsReadForEachUsed(config);
  if (wave_s >= static_cast<double>(kWaveRowsMax) * row_s) return kWaveRowsMax;
  return std::max(kWaveRows, static_cast<int64_t>(wave_s / row_s));
}

int64_t Given(uint64_t bytes) { return static_cast<int64_t>(bytes); }

// What adds up to the device's peak: "weights 1.1 GiB, gradients 1.1 GiB, optimizer states 2.1 GiB, exchange between
// ranks 130 MiB, clipped gradients 1 MiB, RoPE tables 4 MiB"
std::string DevicePartsText(const StateBytes& state, v1::OptimizerResidency residency) {
  const std::string optimizer = residency == v1::HOST
                                    ? absl::StrCat("slabs of optimizer states ", HumanBytes(state.slabs), ", ")
                                    : absl::StrCat("optimizer states ", HumanBytes(state.optimizer), ", ");
  const std::string exchange =
      state.exchange > 0 ? absl::StrCat("exchange between ranks ", HumanBytes(state.exchange), ", ") : "";
  const std::string gathering =
      state.gathering > 0 ? absl::StrCat("gathering of parameters ", HumanBytes(state.gathering), ", ") : "";
  return absl::StrCat("weights ", HumanBytes(state.weights), ", gradients ", HumanBytes(state.gradients), ", ",
                      optimizer, exchange, gathering, "clipped gradients ", HumanBytes(state.clipped(residency)),
                      ", RoPE tables ", HumanBytes(state.tables));
}

absl::Status MachineTooSmall(const v1::RunConfig& run, const char* where, int64_t free_bytes, int64_t needed_bytes,
                             const std::string& parts) {
  return absl::ResourceExhaustedError(absl::StrCat(
      "the worker's ", where, " has ", free_bytes, " bytes free, and the state of this model in ", run.dtype(),
      " needs ", needed_bytes, " there (", parts, "): take a larger machine, a smaller model or a smaller dtype"));
}

// Whether the run can shard its parameters, if nothing else fits.
bool MayShard(const v1::RunConfig& run) {
  return ShardsParameters(run) || (run.shard_parameters() == v1::SHARD_PARAMETERS_AUTO && DataRanks(run.mesh()) > 1);
}

// The fewest bytes in which one rollout of the longest context can be trained.
int64_t LongestContextBytes(const ModelConfig& model, const v1::RunConfig& run) {
  const int64_t rows = std::max<int64_t>(1, model.max_positions / 2);
  const MemoryOptions options = MemoryOptionsOf(model, run, Rates{}, /*forward_only=*/false);
  const ClusterShape longest = {.prefix_rows = {rows}, .members = {{.rows = rows, .prefix_rows = rows}}};
  const StateBytes state = StateBytesOf(model, run);
  const int64_t sums = run.reduce_gradients() == v1::REDUCE_GRADIENTS_STEP ? state.gradient_sums : 0;
  return FewestBytes(options, longest) + state.gathering + sums;
}

class Division {
 public:
  Division(const ModelConfig& model, const WorkerMemory& memory, const v1::RunConfig& run)
      : model_(model), memory_(memory), state_(StateBytesOf(model, run)), run_(run) {}

  absl::StatusOr<v1::RunConfig> Run() {
    RETURN_IF_ERROR(CheckMemory(model_, run_));
    RETURN_IF_ERROR(CheckGiven());
    ChooseHeadChunk();
    ChooseSharding();
    RETURN_IF_ERROR(OneMemory() ? DivideOne() : DivideTwo());
    RETURN_IF_ERROR(CheckMemory(model_, run_));
    return run_;
  }

 private:
  bool OneMemory() const { return memory_.host_free_bytes == 0; }
  bool HasBudget() const { return run_.memory_budget_bytes() > 0; }
  bool HasHost() const { return run_.host_memory_bytes() > 0; }

  // Refuses what the device has not, before it ends as out of memory in the middle of a run. Where host and device are
  // one memory, both are taken from it.
  absl::Status CheckGiven() const {
    const int64_t has = memory_.device_bytes, budget = Given(run_.memory_budget_bytes());
    const int64_t host = OneMemory() ? Given(run_.host_memory_bytes()) : 0;
    if (has == 0 || budget + host <= has) return absl::OkStatus();
    const std::string what = host == 0     ? absl::StrCat("memory_budget_bytes is ", budget)
                             : budget == 0 ? absl::StrCat("host_memory_bytes is ", host)
                                           : absl::StrCat("memory_budget_bytes and host_memory_bytes are ", budget,
                                                          " and ", host, ", ", budget + host, " together");
    return absl::InvalidArgumentError(absl::StrCat(what, ", and the worker's ", OneMemory() ? "machine" : "device",
                                                   " has ", has, " bytes in all: lower it, or leave it out"));
  }

  // Host and device are the same bytes.
  absl::Status DivideOne() {
    const int64_t free_bytes = memory_.device_free_bytes;
    if (free_bytes == 0 && !HasBudget()) {
      return absl::ResourceExhaustedError(
          "the worker cannot tell how much memory its machine has free: set memory_budget_bytes");
    }
    if (free_bytes > 0 && free_bytes <= state_.total()) {
      return MachineTooSmall(run_, "machine", free_bytes, state_.total(), DevicePartsText(state_, v1::DEVICE));
    }
    const int64_t rest = std::max<int64_t>(0, free_bytes - state_.total());
    if (!HasBudget() && run_.optimizer_residency() == v1::OPTIMIZER_RESIDENCY_UNSPECIFIED) {
      run_.set_optimizer_residency(v1::DEVICE);
    }
    ChooseResidency();
    const v1::OptimizerResidency residency = run_.optimizer_residency();
    if (!HasBudget()) SetBudget(state_.device(residency) + rest / kSharedActivationParts);
    if (!HasHost()) SetHost(state_.host(residency) + rest / kSharedHostParts);
    return absl::OkStatus();
  }

  absl::Status DivideTwo() {
    const bool given = HasBudget();
    if (!given) SetBudget(memory_.device_free_bytes - memory_.device_free_bytes / kDeviceReserveParts);
    ChooseResidency();
    const v1::OptimizerResidency residency = run_.optimizer_residency();
    // A budget that nobody gave is the most of what is free that a run may take.
    const int64_t peak = state_.device_peak(residency);
    const bool has_none = given || peak >= memory_.device_free_bytes;
    const int64_t usable = has_none ? memory_.device_free_bytes : Given(run_.memory_budget_bytes());
    if (peak >= usable) {
      return MachineTooSmall(run_, "device", usable, state_.device_peak(residency), DevicePartsText(state_, residency));
    }
    if (state_.host(residency) >= memory_.host_free_bytes) {
      return MachineTooSmall(run_, "host", memory_.host_free_bytes, state_.host(residency), "optimizer states");
    }
    const int64_t rest = memory_.host_free_bytes - state_.host(residency);
    if (!HasHost()) SetHost(state_.host(residency) + rest / kSharedHostParts);
    return absl::OkStatus();
  }

  // See the header. What is free differs from start to start, and is not looked at: chunks are to stay the same.
  void ChooseHeadChunk() {
    if (run_.head_chunk_tokens() > 0) return;
    ByteShape shape = RankShape(model_, run_);
    const int64_t row_bytes = shape.config.vocab_size * shape.accumulate_bytes;
    const int64_t has = HasBudget() ? Given(run_.memory_budget_bytes()) : memory_.device_bytes;
    int64_t chosen = kHeadChunkRows;
    for (const int64_t rows : kDeviceChunkRows) {
      if (!OneMemory() && rows * row_bytes <= has / kDeviceChunkParts) chosen = std::max(chosen, rows);
    }
    run_.set_head_chunk_tokens(static_cast<uint32_t>(chosen));
  }

  // See the header. What optimizer states in host memory would leave is not looked at: they cost more than gathering.
  void ChooseSharding() {
    if (run_.shard_parameters() != v1::SHARD_PARAMETERS_AUTO || DataRanks(run_.mesh()) == 1) return;
    SetSharding(v1::SHARD_PARAMETERS_OFF);
    if (LongestContextFits()) return;
    const int64_t whole = state_.device(run_.optimizer_residency());
    SetSharding(v1::SHARD_PARAMETERS_ON);
    const int64_t freed = whole - state_.device(run_.optimizer_residency()) - state_.gathering;
    const int64_t budget = HasBudget() ? Given(run_.memory_budget_bytes()) : memory_.device_free_bytes;
    if (freed * kWorthShardingParts < budget) SetSharding(v1::SHARD_PARAMETERS_OFF);
  }

  void SetSharding(v1::ShardParameters sharding) {
    run_.set_shard_parameters(sharding);
    state_ = StateBytesOf(model_, run_);
  }

  // Whether one rollout of the longest context can be trained beside the state as it is.
  bool LongestContextFits() const {
    const int64_t state = state_.device(run_.optimizer_residency()), free_bytes = memory_.device_free_bytes;
    const int64_t left = HasBudget()   ? Given(run_.memory_budget_bytes()) - state
                         : OneMemory() ? (free_bytes - state_.total()) / kSharedActivationParts
                                       : free_bytes - free_bytes / kDeviceReserveParts - state;
    return left > 0 && left >= LongestContextBytes(model_, run_);
  }

  // See the header. What the host cannot hold stays, and CheckMemory has the last word.
  void ChooseResidency() {
    if (run_.optimizer_residency() != v1::OPTIMIZER_RESIDENCY_UNSPECIFIED) return;
    run_.set_optimizer_residency(v1::DEVICE);
    const int64_t left = Given(run_.memory_budget_bytes()) - state_.device(v1::DEVICE);
    if (left > 0 && left >= LongestContextBytes(model_, run_)) return;
    if (HasHost() && Given(run_.host_memory_bytes()) < state_.host(v1::HOST)) return;
    if (!OneMemory() && memory_.host_free_bytes <= state_.host(v1::HOST)) return;
    run_.set_optimizer_residency(v1::HOST);
  }

  void SetBudget(int64_t bytes) { run_.set_memory_budget_bytes(static_cast<uint64_t>(bytes)); }
  void SetHost(int64_t bytes) { run_.set_host_memory_bytes(static_cast<uint64_t>(std::max<int64_t>(1, bytes))); }

  const ModelConfig& model_;
  const WorkerMemory& memory_;
  StateBytes state_;
  v1::RunConfig run_;
};

}  // namespace

absl::Status CheckMemory(const ModelConfig& model, const v1::RunConfig& run) {
  const StateBytes state = StateBytesOf(model, RunDtypeOf(run.dtype()), run.mesh(), MayShard(run));
  const int64_t budget = Given(run.memory_budget_bytes()), host = Given(run.host_memory_bytes());
  const bool host_takes_states = host == 0 || host >= state.host(v1::HOST);
  if (run.optimizer_residency() == v1::HOST && !host_takes_states) {
    return absl::InvalidArgumentError(absl::StrCat(
        "host_memory_bytes is ", host, ", and the optimizer states of this model in ", run.dtype(), " need ",
        state.host(v1::HOST), " of host memory (optimizer_residency: host): raise it, or keep them on the device"));
  }
  const v1::OptimizerResidency residency =
      host_takes_states && run.optimizer_residency() != v1::DEVICE ? v1::HOST : v1::DEVICE;
  const int64_t needed = state.device_peak(residency);
  if (budget == 0 || budget > needed) return absl::OkStatus();
  const char* why = residency == v1::HOST                     ? "with optimizer states in host memory"
                    : run.optimizer_residency() == v1::DEVICE ? "with optimizer_residency: device"
                                                              : "as host_memory_bytes cannot take optimizer states";
  return absl::InvalidArgumentError(absl::StrCat("memory_budget_bytes is ", budget, ", but this model in ", run.dtype(),
                                                 " needs more than ", needed, " bytes on the device ", why, " (",
                                                 DevicePartsText(state, residency), "; the rest is for activations)"));
}

absl::StatusOr<v1::RunConfig> DivideMemory(const ModelConfig& model, const WorkerMemory& memory,
                                           const v1::RunConfig& run) {
  return Division(model, memory, run).Run();
}

int64_t ActivationBytes(const ModelConfig& model, const v1::RunConfig& run) {
  return Given(run.memory_budget_bytes()) - StateBytesOf(model, run).device(run.optimizer_residency());
}

std::string PlanProblem(const v1::PlanReport& report, const ModelConfig& model, const v1::RunConfig& run) {
  if (report.shards_parameters() != ShardsParameters(run)) {
    return absl::StrCat("its plan is for ", report.shards_parameters() ? "sharded" : "whole",
                        " parameters; these workers have ", ShardsParameters(run) ? "sharded" : "whole", " ones");
  }
  const int64_t made_for = Given(report.budget_bytes()) - Given(report.state().device());
  const int64_t needed = Given(std::max(report.peak_bytes(), report.peak_bytes_with_headroom()));
  if (const int64_t left = ActivationBytes(model, run); left < made_for && needed > left) {
    return absl::StrCat("its plan needs ", needed, " bytes for activations; the worker that it was made for had ",
                        made_for, ", this one has ", left);
  }
  int64_t host_needed = 0;
  for (const v1::StepReport& step : report.steps()) {
    for (const v1::ClusterReport& cluster : step.clusters()) {
      host_needed = std::max(host_needed, Given(std::max({cluster.prefix_forward().host(), cluster.suffix().host(),
                                                          cluster.prefix_backward().host()})));
    }
    for (const v1::RankReport& rank : step.ranks()) {  // of stages, which may have several clusters at once
      for (const v1::StageReport& stage : rank.stages()) host_needed = std::max(host_needed, Given(stage.host_bytes()));
    }
  }
  if (const int64_t host = HostTapeBytesMax(model, run); host_needed > host) {
    return absl::StrCat("its plan needs ", host_needed, " bytes of host memory for tapes; this worker has ", host);
  }
  return "";
}

MemoryOptions MemoryOptionsOf(const ModelConfig& model, const v1::RunConfig& run, const Rates& rates,
                              bool forward_only) {
  MemoryOptions options;
  options.shape = RankShape(model, run);
  options.shape.row_quantum = rates.row_quantum;
  if (PpSize(run.mesh()) > 1) options.stages = StageShapes(model, run);
  for (ByteShape& stage : options.stages) stage.row_quantum = rates.row_quantum;
  options.budget_bytes = ActivationBytes(model, run);
  options.host_bytes = run.host_memory_bytes() > 0 ? std::max<int64_t>(1, HostTapeBytesMax(model, run)) : 0;
  options.wave_suffixes = run.wave_suffixes();
  options.wave_rows = options.cluster_prefix_rows = RowsWorthPacking(model, rates);
  options.layout = run.layout() == v1::WAVE_LAYOUT_UNSPECIFIED ? v1::PACKED : run.layout();
  options.forward_only = forward_only;
  options.rates = rates;
  // An offloaded tape has no headroom then, so every copy is waited for (server/planner/cluster_ways.cc).
  if (!options.stages.empty()) options.rates.copies_overlap = false;
  options.prefix_policy = run.prefix_policy();
  options.suffix_policy = run.suffix_policy();
  options.prefix_block_rows = run.prefix_block_rows();
  options.offload = run.offload();
  options.prefix_kv = run.prefix_kv();
  return options;
}

}  // namespace stemma::server
