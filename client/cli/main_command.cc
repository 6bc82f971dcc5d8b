// stemma: the command line. Data goes to stdout, messages to stderr; exit codes: command_status.h.
#include <iostream>

#include "CLI/CLI.hpp"
#include "client/cli/command.h"
#include "client/cli/command_status.h"

namespace {

constexpr char kFooter[] =
    "Exit codes: 0 ok, 1 other, 2 usage or configuration, 3 no connection or timeout, 4 not serving, 5 stopped early,\n"
    "64 + gRPC code for a refused call.\n"
    "`stemma COMMAND --help` has examples.";

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Stemma: trains a policy on prompt groups, computing each shared prompt once.", "stemma");
  app.footer(kFooter);
  app.set_version_flag("--version", STEMMA_VERSION);
  app.require_subcommand(1);
  app.set_help_all_flag("--help-all", "Help of every command");
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
  stemma::AddDoctorCommand(app, run);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {  // the one way in which CLI11 reports; help and version come this way too
    const int code = app.exit(error, std::cout, std::cerr);
    return code == 0 ? 0 : static_cast<int>(stemma::ExitCode::kUsage);
  }
  const absl::Status status = run();
  if (!status.ok()) std::cerr << stemma::ErrorText(status) << std::endl;
  return stemma::ExitCodeOf(status);
}
