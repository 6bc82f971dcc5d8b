// What `stemma mesh` and `stemma simulate` have in common: a model, a trace and devices, which the server's binary
// reads, plans by and answers with one JSON object (server/main/planning_options.h). Nothing is served.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/calls/shared_options.h"
#include "client/cli/output/records.h"
#include "common/base/command_line_options.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace stemma::cli {

struct PlanningOptions {
  OutputOptions output;
  std::string model, config_file, trace;
  std::vector<std::string> passed;  // options that the server's binary reads as they are
};

// Adds --model, --config, --trace, --requests and --dtype.
void AddPlannedOptions(CLI::App* command, PlanningOptions* options);

// Adds --device, its memory and its threads.
void AddDeviceOptions(CLI::App* command, PlanningOptions* options);

// Adds --inside, --between and --ranks-per-host.
void AddNetworkOptions(CLI::App* command, PlanningOptions* options);

// Adds an option that is handed on as it is given.
CLI::Option* PassOption(CLI::App* command, PlanningOptions* options, const std::string& name, const std::string& type,
                        const std::string& help);
// The same of a number.
void PassNumber(CLI::App* command, PlanningOptions* options, const std::string& name, const std::string& help,
                const NumberRange& range);

// Asks `stemma-server MODE`. The answer has `model` and `trace` beside what the server's binary says. Errors: exit code
// 2 with all that it finds wrong.
absl::StatusOr<Record> AskPlanner(const std::string& mode, const PlanningOptions& options);

}  // namespace stemma::cli
