// How requests, steps, plans and ranks of the API look as records. Field names are those of the proto.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/cli/output/records.h"
#include "stemma/v1/training.pb.h"

namespace stemma::cli {

// One request, without its steps.
Record RequestRecord(const v1::RequestStatus& status);
std::vector<Column> RequestColumns();

// One optimizer step: step, outcome, loss, grad_norm, tokens_logical, tokens_computed, tokens_saved, seconds. What the
// server did not report is null.
Record StepRecord(const v1::StepResult& step);
std::vector<Column> StepColumns();

// Columns that `keys` name, in their order.
std::vector<Column> Only(const std::vector<Column>& columns, const std::vector<std::string>& keys);

// The whole of a plan in numbers, and one record per cluster with its policies, bytes, seconds and reasons.
Record PlanRecord(const v1::PlanReport& plan);
std::vector<Record> ClusterRecords(const v1::PlanReport& plan);
std::vector<Column> ClusterColumns();

// The split groups of each step.
std::vector<Record> SplitRecords(const v1::PlanReport& plan);
// The load of each rank of each step, with the step's imbalance and over_bound; empty where there is one rank.
std::vector<Record> RankReportRecords(const v1::PlanReport& plan);

// The cost model of each group with a prefix: S(N) = 1 / (rho / N + eta + epsilon), and the way it takes.
std::vector<Record> GroupRecords(const v1::PlanReport& plan);
std::vector<Column> GroupColumns();

// The workers that are connected: rank, its places on dp, pp, cp and tp, host, device, device_name, pid, phase.
std::vector<Record> RankRecords(const v1::ServerInfo& info);
std::vector<Column> RankColumns();

// The links that ranks measured: axis, ranks, gb_per_s that a rank sends, message_us that each call takes
// beside.
std::vector<Record> LinkRecords(const v1::ServerInfo& info);
std::vector<Column> LinkColumns();

// Any message by its proto field names, enums as strings, 64-bit integers as numbers.
Record MessageRecord(const google::protobuf::Message& message);

// The error of a request whose final state is not DONE; OK for one that is done or still runs.
absl::Status OutcomeStatus(const v1::RequestStatus& status);

}  // namespace stemma::cli
