// stemma: the command line. Data goes to stdout, messages to stderr; exit codes: command_status.h.
#include <iostream>
#include <optional>

#include "CLI/CLI.hpp"
#include "client/cli/command.h"
#include "client/cli/command_status.h"
#include "common/parse_options.h"

namespace {

constexpr char kFooter[] =
    "Exit codes: 0 ok, 1 other, 2 usage or configuration, 3 no connection or timeout, 4 not serving, 5 stopped early,\n"
    "64 + gRPC code for a refused call.\n"
    "`stemma COMMAND --help` has examples.";

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Stemma: trains a policy on prompt groups, computing each shared prompt once.", "stemma");
  stemma::SetHelpStyle(app);
  app.footer(kFooter);
  app.set_version_flag("--version", STEMMA_VERSION);
  app.require_subcommand(1);
  stemma::Runner run;
  stemma::AddLocalCommand(app, run);
  stemma::AddReplayCommand(app, run);
  stemma::AddPlanCommand(app, run);
  stemma::AddStatusCommand(app, run);
  stemma::AddRequestsCommand(app, run);
  stemma::AddExportCommand(app, run);
  stemma::AddLogprobCommand(app, run);
  stemma::AddModelCommand(app, run);
  stemma::AddTraceCommand(app, run);
  stemma::AddBoundCommand(app, run);
  stemma::AddDoctorCommand(app, run);
  stemma::AddCompletionCommand(app, run);
  if (const std::optional<int> exit_code = stemma::ParseOptions(app, argc, argv)) return *exit_code;
  const absl::Status status = run();
  if (!status.ok()) std::cerr << stemma::ErrorText(status) << std::endl;
  return stemma::ExitCodeOf(status);
}
