// stemma simulate: what a trace takes on meshes of up to 4,096 workers, with the networks between them, before any of
// them exists. The planner is the server's, so its binary answers (server/main/simulate.h).
#include <algorithm>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "client/cli/calls/shared_options.h"
#include "client/cli/commands/command.h"
#include "client/cli/commands/planning_options.h"
#include "client/cli/output/command_status.h"
#include "client/cli/output/simulation_text.h"
#include "common/base/command_line_options.h"
#include "common/base/mesh.h"
#include "common/base/status_macros.h"

namespace stemma::cli {
namespace {

constexpr uint32_t kGroupsPerCopyMax = 65536;

struct SimulateOptions : PlanningOptions {
  std::vector<std::string> meshes;
};

absl::Status RunSimulate(const SimulateOptions& options) {
  PlanningOptions asked = options;
  for (const std::string& mesh : options.meshes) asked.passed.insert(asked.passed.end(), {"--mesh", mesh});
  ASSIGN_OR_RETURN(const Record answer, AskPlanner("simulate", asked));
  if (options.output.format == OutputFormat::kJson) {
    WriteFields(options.output, answer, std::cout);
  } else {
    WriteSimulation(options.output, answer, std::cout);
  }
  const auto possible = [](const Record& mesh) { return mesh.value("possible", false); };
  if (std::any_of(answer["meshes"].begin(), answer["meshes"].end(), possible)) return absl::OkStatus();
  return WithRpcExitCode(
      absl::ResourceExhaustedError("none of these meshes can run this trace: each line above says why; take more "
                                   "ranks, devices with more memory, or "
                                   "--dtype bf16"));
}

}  // namespace

void AddSimulateCommand(CLI::App& app, Runner& run) {
  auto options = std::make_shared<SimulateOptions>();
  CLI::App* command = app.add_subcommand(
      "simulate", "Run a trace on meshes in simulated time: seconds, bubble, wires hidden or not; needs no server");
  AddPlannedOptions(command, options.get());
  command->add_option("--mesh", options->meshes, "A mesh, as axis=size,...; give several to compare them")
      ->required()
      ->allow_extra_args(false)
      ->type_name("MESH");
  PassOption(command, options.get(), "--groups-per-copy", "N",
             "Give each copy of the model so many groups in one step, the trace's ones again and again")
      ->check(CLI::Range(1u, kGroupsPerCopyMax).description(""));
  AddDeviceOptions(command, options.get());
  AddNetworkOptions(command, options.get());
  PassOption(command, options.get(), "--rates", "FILE",
             "Rates that were measured, as `stemma plan -o json` prints them, networks included");
  PassNumber(command, options.get(), "--cores", "Cores that all ranks share, of a test on one machine", kSharedCores);
  AddOutputOption(command, &options->output);
  SetExamples(
      command,
      "  stemma simulate --model qwen3-8b --trace trace.jsonl --mesh dp=8 --mesh dp=4,tp=2 --device h200 \\\n"
      "      --dtype bf16\n"
      "  stemma simulate --model llama3.1-70b --trace trace.jsonl --mesh dp=64,pp=4,cp=2,tp=8 --device h200 \\\n"
      "      --dtype bf16 --groups-per-copy 8 -o json");
  command->callback([&run, options] { run = [options] { return RunSimulate(*options); }; });
}

}  // namespace stemma::cli
