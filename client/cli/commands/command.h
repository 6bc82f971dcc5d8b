// The commands of `stemma`. Each file <name>_command.cc adds one: its options, its help, and what runs when it is
// named.
#pragma once

#include <functional>

#include "absl/status/status.h"

namespace CLI {
class App;
}

namespace stemma::cli {

// Set while parsing by the command that was named; main runs it afterwards.
using Runner = std::function<absl::Status()>;

void AddLocalCommand(CLI::App& app, Runner& run);
void AddReplayCommand(CLI::App& app, Runner& run);
void AddPlanCommand(CLI::App& app, Runner& run);
void AddStatusCommand(CLI::App& app, Runner& run);
void AddRequestsCommand(CLI::App& app, Runner& run);
void AddExportCommand(CLI::App& app, Runner& run);
void AddCheckpointCommand(CLI::App& app, Runner& run);
void AddLogprobCommand(CLI::App& app, Runner& run);
void AddVerifyCommand(CLI::App& app, Runner& run);
void AddMeshCommand(CLI::App& app, Runner& run);
void AddSimulateCommand(CLI::App& app, Runner& run);
void AddModelCommand(CLI::App& app, Runner& run);
void AddTraceCommand(CLI::App& app, Runner& run);
void AddBoundCommand(CLI::App& app, Runner& run);
void AddDoctorCommand(CLI::App& app, Runner& run);
void AddCompletionCommand(CLI::App& app, Runner& run);

}  // namespace stemma::cli
