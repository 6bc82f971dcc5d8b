// stemma doctor: can this machine run Stemma?
#include <algorithm>
#include <iostream>
#include <memory>

#include "CLI/CLI.hpp"
#include "client/cli/calls/shared_options.h"
#include "client/cli/commands/command.h"
#include "client/cli/commands/machine_checks.h"
#include "client/cli/commands/self_check.h"

namespace stemma::cli {
namespace {

struct DoctorOptions {
  OutputOptions output;
  std::string data_directory;
  bool skip_self_check = false;
};

absl::Status RunDoctor(const DoctorOptions& options) {
  std::vector<Check> checks = CheckMachine(options.data_directory);
  const auto failed = [](const Check& check) { return check.state == CheckState::kFailed; };
  if (!options.skip_self_check && std::none_of(checks.begin(), checks.end(), failed)) checks.push_back(SelfCheck());
  std::vector<Record> records;
  records.reserve(checks.size());
  for (const Check& check : checks) records.push_back(CheckRecord(check));
  WriteRecords(options.output,
               {{"check", "check", 8, true}, {"state", "state", 7, true}, {"detail", "detail", 8, true}}, records,
               std::cout);
  if (std::none_of(checks.begin(), checks.end(), failed)) return absl::OkStatus();
  return absl::UnknownError("this machine cannot run Stemma yet: see the checks that failed");
}

}  // namespace

void AddDoctorCommand(CLI::App& app, Runner& run) {
  auto options = std::make_shared<DoctorOptions>();
  CLI::App* command = app.add_subcommand("doctor", "Check binaries, libraries, ports, memory, and run a tiny model");
  command->add_option("--data", options->data_directory, "Directory whose free space counts (default: here)")
      ->type_name("DIR");
  command->add_flag("--no-self-check", options->skip_self_check, "Look only, start nothing");
  AddOutputOption(command, &options->output);
  SetExamples(command, "  stemma doctor\n  stemma doctor --no-self-check -o json");
  command->callback([&run, options] { run = [options] { return RunDoctor(*options); }; });
}

}  // namespace stemma::cli
