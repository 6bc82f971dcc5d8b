// What the steps of a plan take, by its report: one reading of it for the planner, the ranking of meshes and whoever
// shows a plan. Pure.
#pragma once

#include "stemma/v1/plan.pb.h"

namespace stemma {

// Returns the sum of the phases and the optimizer.
double TotalSeconds(const v1::PhaseSeconds& seconds);

// Returns what a step's phases take: of the data-parallel rank that is last, waiting for the others' parts of split
// groups included, or what the slowest pipeline takes. Less than the sum of each phase's slowest rank, where one rank
// has the long prompts and another one the many suffixes.
double PhasesSeconds(const v1::StepReport& step);

// Returns what a step takes: its phases, what sharded parameters cost beyond them, and the optimizer.
double SecondsOfStep(const v1::StepReport& step);

// Returns what all steps take, those of every epoch and the passes before them.
double PlanSeconds(const v1::PlanReport& plan);

}  // namespace stemma
