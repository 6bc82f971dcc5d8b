// What requests would take on a mesh that nobody has: they are planned as a server would plan them, and the programs of
// all ranks are run in simulated time, with what the networks between them hide and what they do not. Pure.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "server/planner/mesh_ranking.h"
#include "server/simulation/program_run.h"
#include "stemma/v1/run_config.pb.h"

namespace stemma::server {

struct SimulationQuestion {
  MeshQuestion mesh_question;  // its ranks do not count; its rates are those of this mesh's networks
  v1::Mesh mesh;
  // Cores that all ranks share, and threads of each rank; no limit: every rank computes by itself.
  SharedCores cores;
};

// Seconds of a step, or of several together. Without what is named otherwise they are means over all ranks, and
// together they are `total_s`: compute, wires, waits, imbalance, reduction, agreement, APPLY, gathering.
struct StepSeconds {
  double total_s = 0;
  double compute_s = 0;
  AxisSeconds wire_s = {};  // that held ranks inside of a pass; of kStage those that wait for a message on its way
  AxisSeconds wait_s = {};  // kStage: the bubble; kContext, kData: for ranks of the same copy, of others
  double imbalance_s = 0;   // from the end of a copy's pass to that of the slowest one
  double reduction_s = 0;   // after the slowest pass
  double agreement_s = 0;
  double apply_s = 0;
  double gathering_s = 0;  // of stepped weights; sharded ones stay where they are

  // Beside them:
  AxisSeconds hidden_s = {};  // wires that held nobody
  double pass_s = 0;          // of the slowest rank: without what comes after the phases
  // Phases A, B and C, each of the rank that spends most in it, with its wires and the meetings inside of it.
  std::array<double, 3> phase_s = {};

  StepSeconds& operator+=(const StepSeconds& other);
};

struct SimulationAnswer {
  v1::RunConfig run;  // divided
  uint64_t steps = 0;
  double tokens = 0;                             // as MeshAnswer has them
  double flops = 0;                              // of all ranks
  StepSeconds seconds;                           // of all steps, with log-prob passes
  std::array<double, kNumAxes> sent_bytes = {};  // in all steps, by the rank that sends most over the axis
  // Bytes of the rank that holds most.
  uint64_t state_bytes = 0, step_bytes = 0, host_bytes = 0;

  double tokens_per_s() const { return seconds.total_s > 0 ? tokens / seconds.total_s : 0; }
};

// Errors: why the mesh is impossible; CHECKs that there is a request.
absl::StatusOr<SimulationAnswer> Simulate(const SimulationQuestion& question);

}  // namespace stemma::server
