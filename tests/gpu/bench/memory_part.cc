// Tape policies and offload: bytes, seconds, what copies hide; the longest groups that fit; the update with states on
// the device and in host memory.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "common/base/status_macros.h"
#include "common/cost/prefix_bytes.h"
#include "tests/gpu/bench/group_rows.h"
#include "tests/gpu/bench/length_search.h"
#include "tests/gpu/bench/parts.h"
#include "tests/gpu/bench/stack.h"

namespace stemma::testing {
namespace {

using nlohmann::json;

constexpr int64_t kPolicyLayers = 8, kOptimizerLayers = 4;
// Enough for a tape to leave, to be away, and to come back.
constexpr int64_t kProfiledWaves = 8;

struct NamedWay {
  std::string name;
  GroupWay way;
};

int64_t LayersOf(const BenchRun& run, const ModelConfig& model, int64_t usual) {
  return std::min(run.options().layers > 0 ? run.options().layers : usual, model.num_layers);
}

int64_t TapeBytes(const ModelConfig& model, int64_t rows, v1::TapePolicy policy) {
  return HostTapeBytes({.config = model, .run_bytes = 2}, {.rows = rows, .policy = policy, .offload = true});
}

// Leaves two layers' tape on the device, as one is copied while another is used.
GroupWay Offloaded(const ModelConfig& model, int64_t rows, v1::TapePolicy prefix, v1::TapePolicy suffix = v1::S0) {
  return {.prefix = prefix,
          .suffix = suffix,
          .offload = true,
          .headroom_bytes = 2 * TapeBytes(model, rows, prefix) / model.num_layers};
}

std::vector<NamedWay> PolicyWays(const ModelConfig& model, int64_t rows) {
  std::vector<NamedWay> ways;
  const auto add = [&](v1::TapePolicy policy) {
    ways.push_back({v1::TapePolicy_Name(policy), {.prefix = policy}});
    ways.push_back({v1::TapePolicy_Name(policy) + ", offloaded", Offloaded(model, rows, policy)});
  };
  // The most telling first.
  add(v1::S0);
  add(v1::S2);
  ways.push_back({"S2, offloaded, suffixes S1", Offloaded(model, rows, v1::S2, v1::S1)});
  ways.push_back({"S0, suffixes S1", {.suffix = v1::S1}});
  for (const v1::TapePolicy policy : {v1::S1, v1::S3, v1::S4}) add(policy);
  ways.push_back({"S0, offloaded, every copy waited for", {.offload = true}});
  ways.push_back({"S5 in blocks", {.prefix = v1::S5, .block_rows = 2048}});
  ways.push_back({"S4 in blocks, suffixes S2", {.prefix = v1::S4, .suffix = v1::S2, .block_rows = 2048}});
  return ways;
}

// A tape that stays, and those that leave while copies hide behind the work. Where suffixes recompute, the last says
// what that alone gives.
std::vector<NamedWay> DeepWays(const ModelConfig& model, int64_t rows) {
  return {{"S0", {}},
          {"S2, offloaded, suffixes S1", Offloaded(model, rows, v1::S2, v1::S1)},
          {"S2, offloaded", Offloaded(model, rows, v1::S2)},
          {"S0, suffixes S1", {.suffix = v1::S1}}};
}

absl::Status MeasurePolicy(const BenchRun& run, Stack& stack, const GroupSize& size, const GroupWay& way, json& row) {
  GroupRun last;
  ASSIGN_OR_RETURN(const Spread spread, TimeGroup(stack, size, way, &last));
  RETURN_IF_ERROR(Profile(run, stack, size, way, kProfiledWaves));
  const internal::v1::StepSums& sums = last.vote.sums();
  row["seconds"] = spread.Json();
  row["wall_seconds"] = last.wall_seconds;
  row["phases"] = {sums.prefix_forward_s(), sums.suffix_s(), sums.prefix_backward_s()};
  row["phase_bytes"] = {sums.prefix_forward_bytes(), sums.suffix_bytes(), sums.prefix_backward_bytes()};
  row["planned_bytes"] = last.planned_bytes;
  row["host_bytes"] = sums.host_bytes();
  row["out_bytes"] = sums.offload_out_bytes();
  row["in_bytes"] = sums.offload_in_bytes();
  row["demand_loads"] = sums.offload_demand_loads();
  row["waits"] = sums.offload_waits();
  return absl::OkStatus();
}

// Measures the first split's group in each of the ways that `ways_of` names for its prompt.
absl::Status MeasurePolicies(BenchRun& run, const ModelConfig& model,
                             std::vector<NamedWay> (*ways_of)(const ModelConfig&, int64_t rows)) {
  const bool tiny = run.options().tiny;
  GroupSize size = Splits(tiny)[0];
  size.rollouts = RolloutCounts(tiny)[0];
  const std::vector<NamedWay> ways = ways_of(model, size.prompt);
  int64_t tape = 0;
  for (const NamedWay& way : ways) {
    if (way.way.offload) tape = std::max(tape, TapeBytes(model, size.prompt, way.way.prefix));
  }
  run.Fact("layers", model.num_layers);
  run.Fact("size", size.Text());
  ASSIGN_OR_RETURN(const std::unique_ptr<Stack> stack,
                   Stack::Create(run, {.config = model, .host_tape_bytes = tape + tape / 8 + (1 << 20)}));
  for (const NamedWay& way : ways) {
    run.Row("policies", {{"way", way.name}, {"layers", model.num_layers}},
            [&](json& row) { return MeasurePolicy(run, *stack, size, way.way, row); });
  }
  return absl::OkStatus();
}

// Whether a group of so many tokens, cut as the first split is, runs.
absl::StatusOr<bool> Runs(Stack& stack, const NamedWay& way, const GroupSize& split, int64_t tokens) {
  const int64_t response = std::max<int64_t>(1, tokens * split.response / (split.prompt + split.response));
  const absl::StatusOr<GroupRun> run = stack.Run({tokens - response, response, 2}, way.way);
  if (absl::IsResourceExhausted(run.status())) return false;
  RETURN_IF_ERROR(run.status());
  return true;
}

}  // namespace

absl::Status RunMemory(BenchRun& run) {
  ModelConfig model = LlamaConfig(run.options().tiny);
  model.num_layers = LayersOf(run, model, kPolicyLayers);
  return MeasurePolicies(run, model, PolicyWays);
}

absl::Status RunOffload(BenchRun& run) {
  const bool tiny = run.options().tiny;
  ModelConfig model = LlamaConfig(tiny);
  model.num_layers =
      run.options().layers > 0 ? run.options().layers : LayersThatFit(run, model, TrajectoryTokens(tiny));
  return MeasurePolicies(run, model, DeepWays);
}

absl::Status RunCapacity(BenchRun& run) {
  const bool tiny = run.options().tiny;
  ModelConfig model = LlamaConfig(tiny);
  model.num_layers =
      run.options().layers > 0 ? run.options().layers : LayersThatFit(run, model, TrajectoryTokens(tiny));
  if (tiny) model.max_positions = 512;
  run.Fact("layers", model.num_layers);
  const GroupSize split = Splits(tiny)[0];
  // The least tape: what a prefix of all positions keeps of its layers' inputs.
  const int64_t tape = TapeBytes(model, model.max_positions, v1::S4);
  ASSIGN_OR_RETURN(const std::unique_ptr<Stack> stack,
                   Stack::Create(run, {.config = model, .host_tape_bytes = tape + (1 << 20)}));
  const int64_t blocks = tiny ? 64 : 4096, step = tiny ? 64 : 1024;
  const std::vector<NamedWay> ways = {
      {"dense, S0", {.dense = true}},
      {"reuse, S0", {}},
      {"dense, S4", {.dense = true, .suffix = v1::S4}},
      {"reuse, S4 in blocks", {.prefix = v1::S4, .suffix = v1::S4, .block_rows = blocks}},
      {"reuse, S4 in blocks, offloaded", {.prefix = v1::S4, .suffix = v1::S4, .block_rows = blocks, .offload = true}}};
  for (const NamedWay& way : ways) {
    run.Row("capacity", {{"way", way.name}, {"layers", model.num_layers}}, [&](json& row) {
      return FindLongest(
          LengthSearch(model.max_positions / step), step,
          [&](int64_t tokens) { return Runs(*stack, way, split, tokens); }, [&] { return run.TimeIsUp(); }, row);
    });
  }
  return absl::OkStatus();
}

absl::Status RunOptimizer(BenchRun& run) {
  const bool tiny = run.options().tiny;
  ModelConfig model = LlamaConfig(tiny);
  model.num_layers = LayersOf(run, model, kOptimizerLayers);
  run.Fact("layers", model.num_layers);
  for (const v1::OptimizerResidency residency : {v1::DEVICE, v1::HOST}) {
    const json what = {{"states", v1::OptimizerResidency_Name(residency)}, {"layers", model.num_layers}};
    run.Row("optimizer", what, [&](json& row) -> absl::Status {
      ASSIGN_OR_RETURN(const std::unique_ptr<Stack> stack,
                       Stack::Create(run, {.config = model, .residency = residency, .keeps_states = true}));
      Spread spread;
      for (int i = 0; i < kWarmUps + kRuns; ++i) {
        ASSIGN_OR_RETURN(const GroupRun last, stack->Run({64, 32, 2}, {.wave_suffixes = 2}));
        ASSIGN_OR_RETURN(const double seconds, stack->Apply(last));
        if (i >= kWarmUps) spread.seconds.push_back(seconds);
      }
      row["parameters"] = model.num_parameters();
      row["seconds"] = spread.Json();
      return absl::OkStatus();
    });
  }
  return absl::OkStatus();
}

}  // namespace stemma::testing
