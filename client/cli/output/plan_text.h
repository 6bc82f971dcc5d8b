// A plan for people: sums in words with units, one line a cluster. Pure. The plan's every number: request_records.h.
#pragma once

#include <vector>

#include "client/cli/output/records.h"
#include "stemma/v1/plan.pb.h"

namespace stemma::cli {

// request, tokens, FLOPs, time, memory, state.
Record PlanSummary(const v1::PlanReport& plan);

// step, groups, rollouts in waves, how prefix and suffixes are kept, peak, time, why.
std::vector<Record> ClusterSummaries(const v1::PlanReport& plan);
std::vector<Column> ClusterSummaryColumns();

// "S1", "S1 in blocks of 512, offloaded"
std::string PrefixWay(const v1::ClusterReport& cluster);

}  // namespace stemma::cli
