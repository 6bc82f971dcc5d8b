// stemma mesh: which mesh to take for a model, a trace and so many ranks, before any server runs. The planner is the
// server's, so its binary answers (server/main/rank_meshes.h).
#include <iostream>
#include <memory>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "client/cli/calls/shared_options.h"
#include "client/cli/commands/command.h"
#include "client/cli/commands/planning_options.h"
#include "client/cli/output/command_status.h"
#include "client/cli/output/mesh_text.h"
#include "common/base/command_line_options.h"
#include "common/base/mesh.h"
#include "common/base/option_checks.h"
#include "common/base/status_macros.h"

namespace stemma::cli {
namespace {

struct MeshOptions : PlanningOptions {
  uint32_t ranks = 0;
};

// Numbers the possible meshes, which come first.
bool NumberMeshes(Record& answer) {
  int possible = 0;
  for (Record& mesh : answer["meshes"]) {
    mesh["rank"] = mesh.value("possible", false) ? Record(++possible) : Record();
  }
  return possible > 0;
}

absl::Status RunMesh(const MeshOptions& options) {
  PlanningOptions asked = options;
  asked.passed.insert(asked.passed.end(), {"--ranks", absl::StrCat(options.ranks)});
  ASSIGN_OR_RETURN(Record answer, AskPlanner("rank-meshes", asked));
  const bool any = NumberMeshes(answer);
  if (options.output.format == OutputFormat::kJson) {
    WriteFields(options.output, answer, std::cout);
  } else {
    WriteMeshes(options.output, answer, std::cout);
  }
  if (any) return absl::OkStatus();
  return WithRpcExitCode(absl::ResourceExhaustedError(absl::StrCat(
      "no mesh of ", options.ranks, options.ranks == 1 ? " rank" : " ranks",
      " can run this trace: each line above says why; take more ranks, devices with more memory, or --dtype bf16")));
}

}  // namespace

void AddMeshCommand(CLI::App& app, Runner& run) {
  auto options = std::make_shared<MeshOptions>();
  CLI::App* command = app.add_subcommand(
      "mesh", "Rank every mesh of so many workers by predicted time, and say which are impossible; needs no server");
  AddPlannedOptions(command, options.get());
  command->add_option("--ranks", options->ranks, "How many workers there are to be")
      ->required()
      ->check(Whole(1, kRanksMax), "")
      ->type_name("N");
  AddDeviceOptions(command, options.get());
  AddNetworkOptions(command, options.get());
  PassNumber(command, options.get(), "--link-bytes-per-s",
             "Instead: bytes a second that a rank sends over any axis (cpu: as fast as to host memory)",
             kLinkBytesPerS);
  PassNumber(command, options.get(), "--link-latency-us",
             "Instead: microseconds of each message over any axis (cpu: 100)", kLinkLatencyUs);
  AddOutputOption(command, &options->output);
  SetExamples(command,
              "  stemma mesh --model tiny --trace trace.jsonl --ranks 2\n"
              "  stemma mesh --model qwen3-8b --trace trace.jsonl --ranks 8 --device h200 --dtype bf16\n"
              "  stemma mesh --config run.yaml --trace trace.jsonl --ranks 8 --device h100 -o json");
  command->callback([&run, options] { run = [options] { return RunMesh(*options); }; });
}

}  // namespace stemma::cli
