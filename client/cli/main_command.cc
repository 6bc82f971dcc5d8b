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

// CLI11 would only say that a subcommand is required.
bool IsUnknownCommand(const CLI::App& app, int argc, char** argv) {
  if (argc < 2 || argv[1][0] == '-') return false;
  return app.get_subcommands([&](const CLI::App* command) { return command->get_name() == argv[1]; }).empty();
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Stemma: trains a policy on prompt groups, computing each shared prompt once.", "stemma");
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
  stemma::AddDoctorCommand(app, run);
  if (IsUnknownCommand(app, argc, argv)) {
    std::cerr << "error: unknown command \"" << argv[1] << "\"; `stemma --help` lists them" << std::endl;
    return static_cast<int>(stemma::ExitCode::kUsage);
  }
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
