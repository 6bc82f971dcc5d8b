// A plan's pipeline stages, for people and for programs: what each stage of each copy of the model has of a step, and
// how long it waits. Pure. Everything is empty where the plan has no stages.
#pragma once

#include <string>
#include <vector>

#include "client/cli/output/records.h"
#include "stemma/v1/plan.pb.h"

namespace stemma::cli {

// Returns "2 stages, 1.20 s through them, of which the busiest idles 150 ms", of the step whose pipeline takes longest.
std::string PipelineText(const v1::PlanReport& plan);

// step, rank, stage, layers, time, idle, peak.
std::vector<Record> StageSummaries(const v1::PlanReport& plan);
std::vector<Column> StageSummaryColumns();

// Every number of them.
std::vector<Record> StageRecords(const v1::PlanReport& plan);

}  // namespace stemma::cli
