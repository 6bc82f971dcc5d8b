#include "server/simulation/simulation.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/dtype_names.h"
#include "common/base/mesh.h"
#include "common/base/status_macros.h"
#include "common/cost/parameter_units.h"
#include "common/cost/rank_shape.h"
#include "common/cost/state_bytes.h"
#include "common/cost/tensor_parallel_cost.h"
#include "glog/logging.h"
#include "server/planner/memory_division.h"
#include "server/simulation/state_exchange.h"
#include "server/simulation/step_programs.h"

namespace stemma::server {
namespace {

void Add(const AxisSeconds& seconds, AxisSeconds& sum, double times = 1) {
  for (size_t axis = 0; axis < kNumAxes; ++axis) sum[axis] += times * seconds[axis];
}

// Returns what is left of a sum without a part of it, which rounding may make larger than the sum.
double Left(double sum, double part) { return std::max(sum - part, 0.0); }

// What a stage's ranks do with their state once a step, whatever they compute.
struct StageState {
  std::vector<StateRound> rounds;  // none: parameters are sharded, and are exchanged while the phases run
  int64_t owned_elements = 0;      // of optimizer states
  // Gradients of which tensor-parallel ranks have a part each, and those of a tied embedding.
  double partial_s = 0;
  std::array<double, kNumAxes> partial_bytes = {};
};

class Simulator {
 public:
  explicit Simulator(const SimulationQuestion& question)
      : question_(question), config_(question.mesh_question.config), mesh_(question.mesh) {}

  absl::StatusOr<SimulationAnswer> Run() {
    ASSIGN_OR_RETURN(model_, ModelOnMesh(question_.mesh_question, mesh_));
    answer_.run = model_.run;
    const StateBytes state = StateBytesOf(config_, model_.run);
    const v1::OptimizerResidency residency = model_.run.optimizer_residency();
    answer_.state_bytes = static_cast<uint64_t>(state.device(residency));
    answer_.host_bytes = static_cast<uint64_t>(state.host(residency));
    answer_.step_bytes = static_cast<uint64_t>(state.apply(residency));
    for (const ModelShard& shard : StageShards(config_, mesh_)) stages_.push_back(StateOf(shard));
    for (const NamedRequest& named : question_.mesh_question.requests) RETURN_IF_ERROR(AddRequest(named));
    return std::move(answer_);
  }

 private:
  int64_t Shares() const { return DataRanks(mesh_); }
  size_t Stages() const { return PpSize(mesh_); }
  bool IsSharded() const { return ShardsParameters(model_.run); }
  RunDtype Dtype() const { return RunDtypeOf(model_.run.dtype()); }

  StageState StateOf(const ModelShard& shard) const {
    StageState state;
    if (IsSharded()) {
      state.owned_elements = ParameterUnitsOf(shard, Shares()).part();
    } else {
      state.rounds = StateRoundsOf(shard, Shares());
      state.owned_elements = LargestShare(shard, Shares()).elements;
    }
    const PartialGradientBytes bytes = PartialGradientsSent(shard, AccumulateBytes(Dtype()));
    const Rates& rates = model_.rates;
    if (TpSize(mesh_) > 1) {
      const auto sums = static_cast<double>(shard.layer_end - shard.layer_begin + 1);
      state.partial_bytes[kTensorAt] = static_cast<double>(bytes.all + bytes.kv);
      state.partial_s += state.partial_bytes[kTensorAt] * rates[kTensorByte] + sums * rates[kTensorCollective];
    }
    if (bytes.stages > 0) {
      state.partial_bytes[kStageAt] = static_cast<double>(bytes.stages);
      state.partial_s += state.partial_bytes[kStageAt] * rates[kStageByte] + rates[kStageMessage];
    }
    return state;
  }

  absl::Status AddRequest(const NamedRequest& named) {
    absl::StatusOr<PlanResult> plan = MakePlan(model_, named.request);
    if (!plan.ok()) return absl::Status(plan.status().code(), absl::StrCat(named.name, ": ", plan.status().message()));
    const v1::PlanReport& report = plan->report;
    answer_.steps += report.num_steps();
    answer_.tokens += static_cast<double>(report.tokens_logical());
    answer_.flops += report.flops();
    answer_.step_bytes = std::max(answer_.step_bytes, report.peak_bytes());
    if (named.request.log_prob_passes > 0) {
      AddStep(OptionsOf(named.request, /*forward_only=*/true), named.request, plan->plan.log_prob_pass(),
              named.request.log_prob_passes);
    }
    const MemoryOptions options = OptionsOf(named.request, named.request.forward_only);
    for (const v1::StepPlan& step : plan->plan.steps()) AddStep(options, named.request, step, plan->repeats);
    return absl::OkStatus();
  }

  MemoryOptions OptionsOf(const PlannerRequest& request, bool forward_only) const {
    MemoryOptions options = MemoryOptionsOf(config_, model_.run, model_.rates, forward_only);
    options.SetWholeRollouts(request.whole_rollouts);
    return options;
  }

  void AddStep(const MemoryOptions& options, const PlannerRequest& request, const v1::StepPlan& step, uint64_t times) {
    const StepPrograms programs = ProgramsOf(options, model_, request.groups, step);
    const std::vector<SimulatedRank> ranks = RunPrograms(programs.programs, question_.cores);
    StepSeconds seconds = PassSeconds(ranks);
    seconds.phase_s = LongestPhases(programs.programs, ranks);
    for (const AxisSeconds& hidden : programs.hidden_s) {
      Add(hidden, seconds.hidden_s, 1 / static_cast<double>(ranks.size()));
    }
    for (const double message_s : programs.message_s) {
      seconds.hidden_s[kStageAt] += message_s / static_cast<double>(ranks.size());
    }
    seconds.hidden_s[kStageAt] = Left(seconds.hidden_s[kStageAt], seconds.wire_s[kStageAt]);
    std::array<double, kNumAxes> sent = MostSent(programs.sent_bytes);
    if (!options.forward_only && step.clusters_size() > 0) AddState(programs.programs, ranks, seconds, sent);
    for (uint64_t i = 0; i < times; ++i) answer_.seconds += seconds;
    for (size_t axis = 0; axis < kNumAxes; ++axis) answer_.sent_bytes[axis] += static_cast<double>(times) * sent[axis];
  }

  static std::array<double, kNumAxes> MostSent(const std::vector<std::array<double, kNumAxes>>& ranks) {
    std::array<double, kNumAxes> most = {};
    for (const auto& rank : ranks) {
      for (size_t axis = 0; axis < kNumAxes; ++axis) most[axis] = std::max(most[axis], rank[axis]);
    }
    return most;
  }

  // Means over all ranks, until the slowest has ended its pass.
  StepSeconds PassSeconds(const std::vector<SimulatedRank>& ranks) const {
    StepSeconds sum;
    const size_t in_copy = Stages() * CpSize(mesh_);
    for (const SimulatedRank& rank : ranks) sum.pass_s = std::max(sum.pass_s, rank.end_s);
    for (size_t copy = 0; copy < ranks.size() / in_copy; ++copy) {
      double end_s = 0;
      for (size_t i = 0; i < in_copy; ++i) end_s = std::max(end_s, ranks[copy * in_copy + i].end_s);
      for (size_t i = 0; i < in_copy; ++i) {
        const SimulatedRank& rank = ranks[copy * in_copy + i];
        sum.compute_s += rank.compute_s;
        Add(rank.wire_s, sum.wire_s);
        Add(rank.wait_s, sum.wait_s);
        sum.wait_s[Stages() > 1 ? kStageAt : kContextAt] += end_s - rank.end_s;
        sum.imbalance_s += sum.pass_s - end_s;
      }
    }
    return Mean(sum, static_cast<double>(ranks.size()));
  }

  static StepSeconds Mean(const StepSeconds& sum, double ranks) {
    StepSeconds mean = {.total_s = sum.pass_s, .compute_s = sum.compute_s / ranks};
    Add(sum.wire_s, mean.wire_s, 1 / ranks);
    Add(sum.wait_s, mean.wait_s, 1 / ranks);
    mean.imbalance_s = sum.imbalance_s / ranks;
    mean.pass_s = sum.pass_s;
    return mean;
  }

  static std::array<double, 3> LongestPhases(const std::vector<SimulatedProgram>& programs,
                                             const std::vector<SimulatedRank>& ranks) {
    std::array<double, 3> longest = {};
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      std::array<double, 3> of_rank = {};
      for (size_t i = 0; i < programs[rank].size(); ++i) {
        const std::string& name = programs[rank][i].name;
        if (name.size() > 1) continue;  // an exchange
        const SimulatedSpan& span = ranks[rank].spans[i];
        of_rank[name == "A" ? 0 : name == "C" ? 2 : 1] += span.end_s - span.begin_s;
      }
      for (size_t phase = 0; phase < 3; ++phase) longest[phase] = std::max(longest[phase], of_rank[phase]);
    }
    return longest;
  }

  // Adds what comes after the phases: sums of gradients, agreement, APPLY, and the stepped weights of all ranks.
  void AddState(const std::vector<SimulatedProgram>& programs, const std::vector<SimulatedRank>& ranks,
                StepSeconds& seconds, std::array<double, kNumAxes>& sent) const {
    const Rates& rates = model_.rates;
    double end_s = seconds.pass_s, apply_s = 0, gathering_s = 0;
    std::array<double, kNumAxes> most = {};
    for (size_t s = 0; s < Stages(); ++s) {
      const StageState& stage = stages_[s];
      Reduction reduction;
      if (!stage.rounds.empty()) {
        reduction = ReduceGradients(stage.rounds, LastBackwards(programs, ranks, s), AccumulateBytes(Dtype()), rates);
      }
      const double exposed_s = std::max(reduction.end_s - seconds.pass_s, 0.0);
      end_s = std::max(end_s, seconds.pass_s + exposed_s + stage.partial_s);
      seconds.hidden_s[kDataAt] += Left(reduction.wire_s, exposed_s) / static_cast<double>(Stages());
      const Reduction gathering = GatherWeights(stage.rounds, Shares(), RunBytes(Dtype()), rates);
      apply_s = std::max(apply_s, static_cast<double>(stage.owned_elements) * rates[kParameter]);
      gathering_s = std::max(gathering_s, gathering.end_s);
      std::array<double, kNumAxes> of_stage = stage.partial_bytes;
      of_stage[kDataAt] += reduction.sent_bytes + gathering.sent_bytes;
      for (size_t axis = 0; axis < kNumAxes; ++axis) most[axis] = std::max(most[axis], of_stage[axis]);
    }
    for (size_t axis = 0; axis < kNumAxes; ++axis) sent[axis] += most[axis];
    seconds.reduction_s = end_s - seconds.pass_s;
    // A word over each axis; where ranks share cores, APPLY does, too.
    seconds.agreement_s = (TpSize(mesh_) > 1 ? rates[kTensorCollective] : 0) +
                          (Stages() > 1 ? rates[kStageMessage] : 0) + (Shares() > 1 ? rates[kDataCollective] : 0);
    const double threads = question_.cores.threads_per_rank * static_cast<double>(ranks.size());
    seconds.apply_s = apply_s * std::max(threads / question_.cores.cores, 1.0);
    seconds.gathering_s = gathering_s;
    seconds.total_s += seconds.reduction_s + seconds.agreement_s + seconds.apply_s + seconds.gathering_s;
  }

  std::vector<LastBackward> LastBackwards(const std::vector<SimulatedProgram>& programs,
                                          const std::vector<SimulatedRank>& ranks, size_t stage) const {
    std::vector<LastBackward> last;
    const size_t cp = CpSize(mesh_);
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      if (rank / cp % Stages() != stage) continue;
      LastBackward& of_rank = last.emplace_back();
      for (size_t i = 0; i < programs[rank].size(); ++i) {
        const std::string& name = programs[rank][i].name;
        if (name == "B" || name == "C") of_rank = {ranks[rank].spans[i].begin_s, ranks[rank].spans[i].end_s};
      }
    }
    return last;
  }

  const SimulationQuestion& question_;
  const ModelConfig& config_;
  const v1::Mesh& mesh_;
  PlannerModel model_;
  std::vector<StageState> stages_;
  SimulationAnswer answer_;
};

}  // namespace

StepSeconds& StepSeconds::operator+=(const StepSeconds& other) {
  total_s += other.total_s;
  compute_s += other.compute_s;
  Add(other.wire_s, wire_s);
  Add(other.wait_s, wait_s);
  imbalance_s += other.imbalance_s;
  reduction_s += other.reduction_s;
  agreement_s += other.agreement_s;
  apply_s += other.apply_s;
  gathering_s += other.gathering_s;
  Add(other.hidden_s, hidden_s);
  pass_s += other.pass_s;
  for (size_t phase = 0; phase < 3; ++phase) phase_s[phase] += other.phase_s[phase];
  return *this;
}

absl::StatusOr<SimulationAnswer> Simulate(const SimulationQuestion& question) {
  CHECK(!question.mesh_question.requests.empty());
  return Simulator(question).Run();
}

}  // namespace stemma::server
