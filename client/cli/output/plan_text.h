// A plan for people: sums in words with units, one line a cluster and a rank. Pure. The plan's every number:
// request_records.h.
#pragma once

#include <vector>

#include "client/cli/output/records.h"
#include "stemma/v1/plan.pb.h"

namespace stemma::cli {

// request, tokens, FLOPs, time, memory, state; with several ranks how evenly they are loaded, and with pipeline stages
// how long they wait.
Record PlanSummary(const v1::PlanReport& plan);

// step, groups, rollouts in waves, how prefix and suffixes are kept, peak, time, why.
std::vector<Record> ClusterSummaries(const v1::PlanReport& plan);
std::vector<Column> ClusterSummaryColumns();

// step, rank, groups, tokens, peak, time, and where groups are split the time of sending and waiting; nothing where
// there is one rank.
std::vector<Record> RankSummaries(const v1::PlanReport& plan);
std::vector<Column> RankSummaryColumns(const v1::PlanReport& plan);

// step, uid, owner, rollouts of each rank, bytes and time of what travels; nothing where no group is split.
std::vector<Record> SplitSummaries(const v1::PlanReport& plan);
std::vector<Column> SplitSummaryColumns();

// "S1", "S1 in blocks of 512, offloaded"
std::string PrefixWay(const v1::ClusterReport& cluster);

}  // namespace stemma::cli
