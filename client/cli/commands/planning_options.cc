#include "client/cli/commands/planning_options.h"

#include <filesystem>
#include <iterator>
#include <memory>
#include <optional>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/commands/model_shape.h"
#include "client/cli/local/child_output.h"
#include "client/cli/local/child_process.h"
#include "client/cli/output/command_status.h"
#include "common/base/byte_size.h"
#include "common/base/dtype_names.h"
#include "common/base/file.h"
#include "common/base/mesh.h"
#include "common/base/option_checks.h"
#include "common/base/status_macros.h"
#include "common/base/temporary_folder.h"
#include "common/model/model_init.h"

namespace stemma::cli {
namespace {

constexpr const char* kNetworks[] = {"nvlink4", "pcie5", "ib-ndr", "ib-hdr", "ethernet-100g"};

// A folder with the config.json of a published size; nothing where --model is a path, or run.yaml names one.
absl::StatusOr<std::optional<TemporaryFolder>> PublishedModel(const std::string& model) {
  std::error_code error;
  if (model.empty() || std::filesystem::exists(model, error)) return std::nullopt;
  ASSIGN_OR_RETURN(const ModelConfig config, ReadModelShape(model));
  const std::string root = TemporaryRoot();
  if (!std::filesystem::is_directory(root, error)) {  // else it would be made
    return UsageError(absl::StrCat("cannot create a folder in ", root,
                                   ": it is no directory; set TMPDIR to a directory that can be written"));
  }
  ASSIGN_OR_RETURN(TemporaryFolder folder, TemporaryFolder::Create(root + "/stemma-mesh"));
  RETURN_IF_ERROR(WriteFile(folder.path() + "/config.json", ModelConfigJson(config)));
  return std::optional<TemporaryFolder>(std::move(folder));
}

std::vector<std::string> ArgvOf(const std::string& server, const std::string& mode, const std::string& model,
                                const PlanningOptions& options) {
  std::vector<std::string> argv = {server, mode, "--trace", options.trace};
  if (!model.empty()) argv.insert(argv.end(), {"--model", model});
  if (!options.config_file.empty()) argv.insert(argv.end(), {"--config", options.config_file});
  argv.insert(argv.end(), options.passed.begin(), options.passed.end());
  return argv;
}

absl::StatusOr<Record> AnswerOf(const ChildOutput& output, const std::string& mode) {
  Record answer = Record::parse(output.text, nullptr, /*allow_exceptions=*/false);
  if (answer.is_object() && answer.contains("meshes")) return answer;
  if (answer.is_object() && answer.contains("problems")) {
    return UsageError(absl::StrJoin(answer["problems"].get<std::vector<std::string>>(), "\n"));
  }
  return absl::InternalError(absl::StrCat("`stemma-server ", mode, "` ended with ", ExitText(output.wait_status),
                                          " and no answer: is it of this version?"));
}

// Adds an option that is passed on as it was given: a number of bytes, read here only to say what is wrong with it.
void PassBytes(CLI::App* command, PlanningOptions* options, const std::string& name, const std::string& help) {
  const auto problem = [](const std::string& text) {
    const absl::StatusOr<uint64_t> bytes = ParseByteSize(text);
    return bytes.ok() ? std::string() : std::string(bytes.status().message());
  };
  PassOption(command, options, name, "BYTES", help)->check(CLI::Validator(problem, "", ""));
}

}  // namespace

void AddPlannedOptions(CLI::App* command, PlanningOptions* options) {
  command
      ->add_option("--model", options->model,
                   "Hugging Face directory, of which config.json is read alone; or that file, or a size (qwen3-8b)")
      ->type_name("MODEL");
  command
      ->add_option("--config", options->config_file, "run.yaml; options given here override it, its mesh is no matter")
      ->type_name("FILE");
  command->add_option("--trace", options->trace, "Requests that are planned")->required()->type_name("FILE");
  PassOption(command, options, "--requests", "N", "Plan so many requests of the trace, the first ones (default: 8)")
      ->check(Whole(1, 4096), "");
  PassOption(command, options, "--dtype", "fp32|fp64|bf16", "What to compute in (default: fp32)")
      ->check(OneOf({"fp32", "fp64", "bf16"}), "")
      ->transform(&ShortDtypeName, "");
}

void AddDeviceOptions(CLI::App* command, PlanningOptions* options) {
  PassOption(command, options, "--device", "cpu|a100|h100|h200|h20",
             "What each rank has: its part of this machine, or a GPU as published (default: cpu)")
      ->check(OneOf({"cpu", "a100", "h100", "h200", "h20"}), "");
  PassBytes(command, options, "--device-memory", "Memory of each rank's device, e.g. 80GB (default: by --device)");
  PassBytes(command, options, "--memory-budget",
            "Part of it for state and activations (default: as a server would divide it)");
  PassBytes(command, options, "--host-memory", "Each rank's host memory for what leaves the device");
  PassOption(command, options, "--threads", "N", "Threads of each rank on cpu (default: this machine's, divided)")
      ->check(Whole(1, 4096), "");
}

CLI::Option* PassOption(CLI::App* command, PlanningOptions* options, const std::string& name, const std::string& type,
                        const std::string& help) {
  return command
      ->add_option_function<std::string>(
          name,
          [options, name](const std::string& value) {
            options->passed.insert(options->passed.end(), {name, value});
          },
          help)
      ->type_name(type);
}

void PassNumber(CLI::App* command, PlanningOptions* options, const std::string& name, const std::string& help,
                const NumberRange& range) {
  auto number = std::make_shared<double>(0);
  AddNumber(command, name, *number, help, range)
      ->type_name("X")
      ->each([options, name, number](const std::string& text) {
        options->passed.insert(options->passed.end(), {name, text});
      });
}

void AddNetworkOptions(CLI::App* command, PlanningOptions* options) {
  const OptionCheck known = OneOf({std::begin(kNetworks), std::end(kNetworks)});
  const std::string names = absl::StrJoin(kNetworks, ", ");
  PassOption(command, options, "--inside", "NAME",
             absl::StrCat("Network between the ranks of a host: ", names, " (GPUs: nvlink4)"))
      ->check(known, "");
  PassOption(command, options, "--between", "NAME", "Network between hosts, one of the same (GPUs: ib-ndr)")
      ->check(known, "");
  PassOption(command, options, "--ranks-per-host", "N", "Ranks that share a host (default: 8)")
      ->check(Whole(1, kRanksMax), "");
}

absl::StatusOr<Record> AskPlanner(const std::string& mode, const PlanningOptions& options) {
  if (options.model.empty() && options.config_file.empty()) {
    return UsageError("say which model: --model DIR, or --config FILE that names one");
  }
  ASSIGN_OR_RETURN(const std::string server, SiblingExecutable("stemma-server"));
  ASSIGN_OR_RETURN(const std::optional<TemporaryFolder> published, PublishedModel(options.model));
  const std::string model = published ? published->path() : options.model;
  ASSIGN_OR_RETURN(const ChildOutput output, ReadChild(ArgvOf(server, mode, model, options)));
  ASSIGN_OR_RETURN(const Record read, AnswerOf(output, mode));
  Record answer = {{"model", options.model.empty() ? options.config_file : options.model}, {"trace", options.trace}};
  answer.update(read);
  return answer;
}

}  // namespace stemma::cli
