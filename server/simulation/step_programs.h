// The programs of all ranks in one step of a plan, as the simulator runs them (server/simulation/program_run.h). Pure.
//
// One program stands for the tensor-parallel ranks of a place, which do the same at the same time. They follow the
// plan: clusters and waves in their order, of pipeline stages in the orders that the plan has for them. What travels
// inside of layers holds a rank, but for what the worker sends beside compute (docs/parallelism.md): prefixes that
// context-parallel ranks gather again for each wave, and their gK/gV; in Phase C the gathering alone.
//
// Where parameters are sharded, the ranks of all copies that hold the same part of the model meet in each operation of
// a place's sweeps, and gather and hand out its units beside what each computes in it, which may be nothing.
#pragma once

#include <cstdint>
#include <vector>

#include "server/planner/memory_options.h"
#include "server/planner/planner.h"
#include "server/simulation/program_run.h"
#include "stemma/v1/plan.pb.h"

namespace stemma::server {

struct StepPrograms {
  // By copy of the model, stage and context-parallel rank: program (copy · pp + stage) · cp + rank.
  std::vector<SimulatedProgram> programs;
  std::vector<AxisSeconds> hidden_s;  // of each: wires beside its compute
  std::vector<std::array<double, kNumAxes>> sent_bytes;
  std::vector<double> message_s;  // of each: what it sends to its neighbours takes on the link
};

// `options`: those of `model`, forward_only as the step is. `groups`: the request's.
StepPrograms ProgramsOf(const MemoryOptions& options, const PlannerModel& model,
                        const std::vector<PlannerGroup>& groups, const v1::StepPlan& step);

}  // namespace stemma::server
