// stemma doctor: can this machine run Stemma?
#include <algorithm>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "client/cli/calls/shared_options.h"
#include "client/cli/commands/command.h"
#include "client/cli/commands/machine_checks.h"
#include "client/cli/commands/self_check.h"
#include "client/cli/output/command_status.h"
#include "common/base/mesh.h"
#include "common/base/status_macros.h"

namespace stemma::cli {
namespace {

struct DoctorOptions {
  OutputOptions output;
  std::string data_directory;
  std::optional<std::string> mesh;
  bool skip_self_check = false;
};

// Errors: exit code 2 - a mesh that cannot be read, or not be run here.
absl::StatusOr<v1::Mesh> MeshOf(const DoctorOptions& options) {
  if (!options.mesh) return v1::Mesh();
  if (options.skip_self_check) {
    return UsageError(
        "--mesh says on which ranks the self check runs, and --no-self-check runs none: give one of the two");
  }
  absl::StatusOr<v1::Mesh> mesh = ParseMesh(*options.mesh);
  if (!mesh.ok()) return UsageError(absl::StrCat("--mesh ", *options.mesh, ": ", std::string(mesh.status().message())));
  RETURN_IF_ERROR(CheckSelfCheckMesh(*mesh));
  return mesh;
}

absl::Status RunDoctor(const DoctorOptions& options) {
  ASSIGN_OR_RETURN(const v1::Mesh mesh, MeshOf(options));
  std::vector<Check> checks = CheckMachine(options.data_directory);
  const auto failed = [](const Check& check) { return check.state == CheckState::kFailed; };
  if (!options.skip_self_check && std::none_of(checks.begin(), checks.end(), failed)) {
    for (Check& check : SelfCheck(mesh)) checks.push_back(std::move(check));
  }
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
  command->add_option("--mesh", options->mesh, "Run the tiny model on this mesh, and show how fast each axis's link is")
      ->type_name("MESH");
  command->add_flag("--no-self-check", options->skip_self_check, "Look only, start nothing");
  AddOutputOption(command, &options->output);
  SetExamples(command, "  stemma doctor\n  stemma doctor --mesh dp=2,tp=2\n  stemma doctor --no-self-check -o json");
  command->callback([&run, options] { run = [options] { return RunDoctor(*options); }; });
}

}  // namespace stemma::cli
