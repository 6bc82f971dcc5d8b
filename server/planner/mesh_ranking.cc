#include "server/planner/mesh_ranking.h"

#include <algorithm>
#include <array>
#include <span>

#include "absl/strings/str_cat.h"
#include "common/base/mesh.h"
#include "common/base/parallel_for.h"
#include "common/base/status_macros.h"
#include "common/cost/plan_seconds.h"
#include "common/cost/rank_shape.h"
#include "common/cost/state_bytes.h"
#include "common/cost/tensor_parallel_cost.h"
#include "common/model/mesh_rules.h"
#include "glog/logging.h"

namespace stemma::server {
namespace {

using Axis = uint32_t MeshSizes::*;

// Returns the axes to which ranks are dealt, the outermost first. An axis joins here once plans count what it costs.
std::span<const Axis> AxesThatThePlannerKnows() {
  static constexpr std::array<Axis, 4> kAxes = {&MeshSizes::dp, &MeshSizes::pp, &MeshSizes::cp, &MeshSizes::tp};
  return kAxes;
}

// Adds every way to deal `ranks` to these axes.
void AddMeshes(std::span<const Axis> axes, uint32_t ranks, MeshSizes sizes, std::vector<v1::Mesh>& meshes) {
  if (axes.size() == 1) {
    sizes.*axes.front() = ranks;
    meshes.push_back(MakeMesh(sizes));
    return;
  }
  for (uint32_t size = ranks; size > 0; --size) {
    if (ranks % size != 0) continue;
    sizes.*axes.front() = size;
    AddMeshes(axes.subspan(1), ranks / size, sizes, meshes);
  }
}

void AddReport(const v1::PlanReport& report, MeshAnswer& answer) {
  answer.plan_s += PlanSeconds(report);
  const uint64_t of_pass = report.log_prob_passes() > 0 ? report.steps(0).tokens_logical() : 0;
  answer.tokens += static_cast<double>(report.tokens_logical() - report.log_prob_passes() * of_pass);
  answer.steps += report.num_steps();
  answer.step_bytes = std::max(answer.step_bytes, report.peak_bytes());
  for (const v1::StepReport& step : report.steps()) answer.imbalance = std::max(answer.imbalance, step.imbalance());
}

void AddState(const ModelConfig& config, const v1::RunConfig& run, MeshAnswer& answer) {
  const StateBytes state = StateBytesOf(config, run);
  const v1::OptimizerResidency residency = run.optimizer_residency();
  answer.state_bytes = static_cast<uint64_t>(state.device(residency));
  answer.host_bytes = static_cast<uint64_t>(state.host(residency));
  answer.step_bytes = static_cast<uint64_t>(state.apply(residency));
  answer.budget_bytes = run.memory_budget_bytes();
  answer.shards_parameters = ShardsParameters(run);
}

// Returns the seconds of one step: a reduce-scatter of gradients and an all-gather of weights, unless parameters are
// sharded; before them, the sum of a tied embedding's gradient over two pipeline stages (docs/parallelism.md).
double ExchangeSeconds(const ModelConfig& config, const v1::RunConfig& run, const Rates& rates) {
  const ModelShard first = StageShards(config, run.mesh()).front();
  const int64_t tied = PartialGradientsSent(first, AccumulateBytes(RunDtypeOf(run.dtype()))).stages;
  const double tied_s = static_cast<double>(tied) * rates[kStageByte];
  if (ShardsParameters(run)) return tied_s;
  const StateBytes state = StateBytesOf(config, run);
  const double ranks = DataRanks(run.mesh());
  const double shared = (ranks - 1) / ranks * static_cast<double>(state.gradients + state.weights);
  return shared * rates[kDataByte] + tied_s;
}

// Errors: why the mesh is impossible.
absl::Status Predict(const MeshQuestion& question, MeshAnswer& answer) {
  ASSIGN_OR_RETURN(const PlannerModel model, ModelOnMesh(question, answer.mesh));
  AddState(question.config, model.run, answer);
  for (const NamedRequest& named : question.requests) {
    const absl::StatusOr<PlanResult> plan = MakePlan(model, named.request);
    if (!plan.ok()) return absl::Status(plan.status().code(), absl::StrCat(named.name, ": ", plan.status().message()));
    AddReport(plan->report, answer);
  }
  answer.exchange_s = static_cast<double>(answer.steps) * ExchangeSeconds(question.config, model.run, model.rates);
  return absl::OkStatus();
}

}  // namespace

std::vector<v1::Mesh> MeshesOf(uint32_t ranks) {
  CHECK(ranks >= 1 && ranks <= kRanksMax) << ranks;
  std::vector<v1::Mesh> meshes;
  AddMeshes(AxesThatThePlannerKnows(), ranks, {}, meshes);
  return meshes;
}

absl::StatusOr<PlannerModel> ModelOnMesh(const MeshQuestion& question, const v1::Mesh& mesh) {
  RETURN_IF_ERROR(CheckMesh(question.config, mesh));
  PlannerModel model = {.config = question.config, .run = question.run, .rates = {}};
  *model.run.mutable_mesh() = mesh;
  ASSIGN_OR_RETURN(model.run, DivideMemory(question.config, question.memory, model.run));
  model.rates = question.rates(mesh, model.run.optimizer_residency());
  return model;
}

std::vector<MeshAnswer> RankMeshes(const MeshQuestion& question, size_t threads) {
  const std::vector<v1::Mesh> meshes = MeshesOf(question.ranks);
  std::vector<MeshAnswer> answers(meshes.size());
  ParallelFor(meshes.size(), threads, [&](size_t i) {
    answers[i].mesh = meshes[i];
    const absl::Status status = Predict(question, answers[i]);
    if (!status.ok()) answers[i] = {.mesh = meshes[i], .problem = std::string(status.message())};
  });
  std::stable_sort(answers.begin(), answers.end(), [](const MeshAnswer& a, const MeshAnswer& b) {
    return a.possible() && (!b.possible() || a.seconds() < b.seconds());
  });
  return answers;
}

}  // namespace stemma::server
