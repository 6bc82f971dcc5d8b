// stemma: the command line. Data goes to stdout, messages to stderr; exit codes: command_status.h.
#include <algorithm>
#include <iostream>
#include <optional>
#include <string>

#include "CLI/CLI.hpp"
#include "client/cli/commands/command.h"
#include "client/cli/commands/misplaced_options.h"
#include "client/cli/output/command_status.h"
#include "common/base/descriptors.h"
#include "common/base/open_ssl.h"
#include "common/base/parse_options.h"
#include "common/base/process.h"

namespace {

// What was printed may still not be there: a full disk shows when the last of it is written.
int Printed(int exit_code) {
  if (std::cout.flush()) return exit_code;
  std::cerr << "error: stdout cannot be written: what was printed is not whole" << std::endl;
  return exit_code == 0 ? static_cast<int>(stemma::cli::ExitCode::kOther) : exit_code;
}

constexpr char kFooter[] =
    "Exit codes: 0 ok, 1 other, 2 usage or configuration, 3 no connection or timeout, 4 not serving, 5 stopped early,\n"
    "64 + gRPC code for a refused call, 93 what `stemma local` keeps is damaged.\n"
    "`stemma COMMAND --help` has examples.";

}  // namespace

int main(int argc, char** argv) {
  stemma::OpenStandardDescriptors();
  stemma::KeepOpenSslAtExit();
  stemma::IgnoreFileSizeSignal();  // a file that may not grow is an error, which removes what was written
  CLI::App app("Stemma: trains a policy on prompt groups, computing each shared prompt once.", "stemma");
  stemma::SetHelpStyle(app);
  app.footer(kFooter);
  app.set_version_flag("--version", STEMMA_VERSION);
  app.require_subcommand(1);
  stemma::cli::Runner run;
  stemma::cli::AddLocalCommand(app, run);
  stemma::cli::AddReplayCommand(app, run);
  stemma::cli::AddPlanCommand(app, run);
  stemma::cli::AddStatusCommand(app, run);
  stemma::cli::AddRequestsCommand(app, run);
  stemma::cli::AddExportCommand(app, run);
  stemma::cli::AddCheckpointCommand(app, run);
  stemma::cli::AddLogprobCommand(app, run);
  stemma::cli::AddVerifyCommand(app, run);
  stemma::cli::AddMeshCommand(app, run);
  stemma::cli::AddSimulateCommand(app, run);
  stemma::cli::AddModelCommand(app, run);
  stemma::cli::AddTraceCommand(app, run);
  stemma::cli::AddBoundCommand(app, run);
  stemma::cli::AddDoctorCommand(app, run);
  stemma::cli::AddCompletionCommand(app, run);
  const std::string misplaced = stemma::cli::MisplacedOption(app, {argv + std::min(argc, 1), argv + argc});
  if (!misplaced.empty()) {
    std::cerr << misplaced << std::endl;
    return static_cast<int>(stemma::cli::ExitCode::kUsage);
  }
  if (const std::optional<int> exit_code = stemma::ParseOptions(app, argc, argv)) return Printed(*exit_code);
  const absl::Status status = run();
  if (!status.ok()) std::cerr << stemma::cli::ErrorText(status) << std::endl;
  return Printed(stemma::cli::ExitCodeOf(status));
}
