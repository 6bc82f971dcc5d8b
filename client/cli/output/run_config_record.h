// How the configuration that a server runs looks on the terminal.
#pragma once

#include "client/cli/output/records.h"
#include "stemma/v1/run_config.pb.h"

namespace stemma::cli {

// Returns the configuration in the words of run.yaml (schedule: auto), and says so where the planner chooses.
Record RunConfigRecord(const v1::RunConfig& config);

}  // namespace stemma::cli
