// Which mesh to take: every way to deal ranks to the axes, with the seconds and bytes that the planner predicts of
// given requests, or with the reason why there is no such way. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/model/model_config.h"
#include "server/planner/memory_division.h"
#include "server/planner/planner.h"
#include "stemma/v1/run_config.pb.h"

namespace stemma::server {

struct NamedRequest {
  std::string name;  // "the request on line 2": as a reason calls it
  PlannerRequest request;
};

struct MeshQuestion {
  ModelConfig config;
  v1::RunConfig run;  // valid, with its defaults; its mesh does not count
  std::vector<NamedRequest> requests;
  uint32_t ranks = 1;
  WorkerMemory memory;  // of each rank
  // Returns a rank's rates on a mesh, by where the optimizer's states live.
  std::function<Rates(const v1::Mesh&, v1::OptimizerResidency)> rates;
};

struct MeshAnswer {
  v1::Mesh mesh;
  std::string problem;  // why it is impossible; "": it is possible, and the rest is filled
  double plan_s = 0;    // as the plans say of all steps of all requests, with APPLY and log-prob passes
  // What gradients and weights take between the ranks that share them, once a step; plans do not have it. It is the
  // most: what the last backward hides of it is not taken off. Where parameters are sharded, plans have it.
  double exchange_s = 0;
  bool shards_parameters = false;
  double tokens = 0;  // prefix and response of every rollout that runs, in these steps
  uint64_t steps = 0;
  // On the device of the rank that holds most: the state, and the most that a step adds to it.
  uint64_t state_bytes = 0, step_bytes = 0;
  uint64_t host_bytes = 0;    // optimizer states in host memory
  uint64_t budget_bytes = 0;  // of the device, for state and step
  double imbalance = 0;       // of the worst step, as StepReport has it; 0: one data-parallel rank

  bool possible() const { return problem.empty(); }
  uint64_t bytes() const { return state_bytes + step_bytes; }
  double seconds() const { return plan_s + exchange_s; }
  double tokens_per_s() const { return seconds() > 0 ? tokens / seconds() : 0; }
};

// Returns every mesh of so many ranks once, those of most data-parallel ranks first. Axes that the planner does not
// know have one rank. REQUIRES: 1 <= ranks <= kRanksMax.
std::vector<v1::Mesh> MeshesOf(uint32_t ranks);

// Returns what the planner plans by on one mesh, its memory divided. Errors: why the mesh is impossible.
absl::StatusOr<PlannerModel> ModelOnMesh(const MeshQuestion& question, const v1::Mesh& mesh);

// Returns an answer for each of these meshes: possible ones first, the fastest before the others; of equally fast ones,
// and of those that are impossible, as MeshesOf has them. Many large meshes take minutes of one thread: `threads` at
// most look at some each, and change no answer. `question.rates` is called from any of them.
std::vector<MeshAnswer> RankMeshes(const MeshQuestion& question, size_t threads = 1);

}  // namespace stemma::server
