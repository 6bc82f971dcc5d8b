// stemma simulate: what a trace takes on meshes of up to 4,096 workers, with the networks between them, before any of
// them exists. The planner is the server's, so its binary answers (server/main/simulate.h).
#include <algorithm>
#include <iostream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/cli/calls/shared_options.h"
#include "client/cli/commands/command.h"
#include "client/cli/commands/planning_options.h"
#include "client/cli/output/command_status.h"
#include "client/cli/output/simulation_text.h"
#include "common/base/command_line_options.h"
#include "common/base/file.h"
#include "common/base/mesh.h"
#include "common/base/option_checks.h"
#include "common/base/status_macros.h"

namespace stemma::cli {
namespace {

constexpr uint32_t kGroupsPerCopyMax = 65536;
constexpr uint64_t kPlanFileBytesMax = uint64_t{1} << 30;

struct SimulateOptions : PlanningOptions {
  std::vector<std::string> meshes;
};

// Returns the value of an option that is handed on; empty where it is not given.
std::string Passed(const PlanningOptions& options, const std::string& name) {
  const auto found = std::find(options.passed.begin(), options.passed.end(), name);
  return found == options.passed.end() ? "" : *std::next(found);
}

// Whether "h200" is one of the words of "NVIDIA H200"; H20 is another device.
bool Names(const std::string& hardware, const std::string& device) {
  const auto is_separator = [](char c) { return !absl::ascii_isalnum(static_cast<unsigned char>(c)); };
  std::string words = absl::AsciiStrToLower(hardware);
  std::replace_if(words.begin(), words.end(), is_separator, ' ');
  const std::vector<std::string> all = absl::StrSplit(words, ' ');
  return std::find(all.begin(), all.end(), device) != all.end();
}

// Says where rates are of another device than the ranks are to have. A file that is no plan is not judged here: the
// server's binary refuses what has no rates.
void WarnOfOtherDevice(const PlanningOptions& options) {
  const std::string path = Passed(options, "--rates");
  if (path.empty()) return;
  const absl::StatusOr<std::string> text = ReadFile(path, kPlanFileBytesMax);
  const Record plan = Record::parse(text.ok() ? *text : "", nullptr, /*allow_exceptions=*/false);
  if (!plan.is_object() || !plan.contains("device") || !plan["device"].is_string()) return;
  const std::string of = plan["device"].get<std::string>(), given = Passed(options, "--device");
  const std::string device = given.empty() ? "cpu" : given;
  if (Names(of, device)) return;
  std::cerr << "warning: --rates " << path << " was measured on " << of << ", and "
            << (given.empty() ? "without --device the ranks have a cpu" : absl::StrCat("--device is ", given))
            << ": times are those of " << of << ", memory is that of " << device << std::endl;
}

absl::Status RunSimulate(const SimulateOptions& options) {
  PlanningOptions asked = options;
  for (const std::string& mesh : options.meshes) asked.passed.insert(asked.passed.end(), {"--mesh", mesh});
  ASSIGN_OR_RETURN(const Record answer, AskPlanner("simulate", asked));
  WarnOfOtherDevice(options);
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
      ->check(Whole(1, kGroupsPerCopyMax), "");
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
