// stemma mesh: which mesh to take for a model, a trace and so many ranks, before any server runs. The planner is the
// server's, so its binary answers (server/main/rank_meshes.h).
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/cli/calls/shared_options.h"
#include "client/cli/commands/command.h"
#include "client/cli/commands/model_shape.h"
#include "client/cli/local/child_output.h"
#include "client/cli/local/child_process.h"
#include "client/cli/output/command_status.h"
#include "client/cli/output/mesh_text.h"
#include "common/base/byte_size.h"
#include "common/base/command_line_options.h"
#include "common/base/dtype_names.h"
#include "common/base/file.h"
#include "common/base/mesh.h"
#include "common/base/status_macros.h"
#include "common/base/temporary_folder.h"
#include "common/model/model_init.h"

namespace stemma::cli {
namespace {

struct MeshOptions {
  OutputOptions output;
  std::string model, config_file, trace;
  uint32_t ranks = 0;
  std::vector<std::string> passed;  // options that the server's binary reads as they are
};

// A folder with the config.json of a published size; nothing where --model is a path, or run.yaml names one.
absl::StatusOr<std::optional<TemporaryFolder>> PublishedModel(const std::string& model) {
  std::error_code error;
  if (model.empty() || std::filesystem::exists(model, error)) return std::nullopt;
  ASSIGN_OR_RETURN(const ModelConfig config, ReadModelShape(model));
  ASSIGN_OR_RETURN(TemporaryFolder folder, TemporaryFolder::Create(TemporaryRoot() + "/stemma-mesh"));
  RETURN_IF_ERROR(WriteFile(folder.path() + "/config.json", ModelConfigJson(config)));
  return std::optional<TemporaryFolder>(std::move(folder));
}

std::vector<std::string> ArgvOf(const std::string& server, const std::string& model, const MeshOptions& options) {
  std::vector<std::string> argv = {server,    "rank-meshes", "--ranks", absl::StrCat(options.ranks),
                                   "--trace", options.trace};
  if (!model.empty()) argv.insert(argv.end(), {"--model", model});
  if (!options.config_file.empty()) argv.insert(argv.end(), {"--config", options.config_file});
  argv.insert(argv.end(), options.passed.begin(), options.passed.end());
  return argv;
}

// Errors: exit code 2 with all that the server's binary finds wrong.
absl::StatusOr<Record> AnswerOf(const ChildOutput& output) {
  Record answer = Record::parse(output.text, nullptr, /*allow_exceptions=*/false);
  if (answer.is_object() && answer.contains("meshes")) return answer;
  if (answer.is_object() && answer.contains("problems")) {
    return UsageError(absl::StrJoin(answer["problems"].get<std::vector<std::string>>(), "\n"));
  }
  return absl::InternalError(absl::StrCat("`stemma-server rank-meshes` ended with ", ExitText(output.wait_status),
                                          " and no answer: is it of this version?"));
}

// Numbers the possible meshes, which come first.
bool NumberMeshes(Record& answer) {
  int possible = 0;
  for (Record& mesh : answer["meshes"]) {
    mesh["rank"] = mesh.value("possible", false) ? Record(++possible) : Record();
  }
  return possible > 0;
}

absl::Status RunMesh(const MeshOptions& options) {
  if (options.model.empty() && options.config_file.empty()) {
    return UsageError("say which model: --model DIR, or --config FILE that names one");
  }
  ASSIGN_OR_RETURN(const std::string server, SiblingExecutable("stemma-server"));
  ASSIGN_OR_RETURN(const std::optional<TemporaryFolder> published, PublishedModel(options.model));
  const std::string model = published ? published->path() : options.model;
  ASSIGN_OR_RETURN(const ChildOutput output, ReadChild(ArgvOf(server, model, options)));
  ASSIGN_OR_RETURN(const Record read, AnswerOf(output));
  Record answer = {{"model", options.model.empty() ? options.config_file : options.model}, {"trace", options.trace}};
  answer.update(read);
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

CLI::Option* Pass(CLI::App* command, MeshOptions* options, const std::string& name, const std::string& type,
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

// The same of a number of bytes, which is read here only to say what is wrong with it.
void PassBytes(CLI::App* command, MeshOptions* options, const std::string& name, const std::string& help) {
  const auto problem = [](const std::string& text) {
    const absl::StatusOr<uint64_t> bytes = ParseByteSize(text);
    return bytes.ok() ? std::string() : std::string(bytes.status().message());
  };
  Pass(command, options, name, "BYTES", help)->check(CLI::Validator(problem, "", ""));
}

void AddModelOptions(CLI::App* command, MeshOptions* options) {
  command
      ->add_option("--model", options->model,
                   "Hugging Face directory, of which config.json is read alone; or that file, or a size (qwen3-8b)")
      ->type_name("MODEL");
  command
      ->add_option("--config", options->config_file, "run.yaml; options given here override it, its mesh is no matter")
      ->type_name("FILE");
  command->add_option("--trace", options->trace, "Requests that are planned")->required()->type_name("FILE");
  command->add_option("--ranks", options->ranks, "How many workers there are to be")
      ->required()
      ->check(CLI::Range(1u, kRanksMax).description(""))
      ->type_name("N");
  Pass(command, options, "--requests", "N", "Plan so many requests of the trace, the first ones (default: 8)")
      ->check(CLI::Range(1, 4096).description(""));
  Pass(command, options, "--dtype", "fp32|fp64|bf16", "What to compute in (default: fp32)")
      ->check(CLI::IsMember({"fp32", "fp64", "bf16"}).description(""))
      ->transform(&ShortDtypeName, "");
}

void AddDeviceOptions(CLI::App* command, MeshOptions* options) {
  Pass(command, options, "--device", "cpu|h100|h200",
       "What each rank has: its part of this machine, or a GPU as published (default: cpu)")
      ->check(CLI::IsMember({"cpu", "h100", "h200"}).description(""));
  PassBytes(command, options, "--device-memory", "Memory of each rank's device, e.g. 80GB (default: by --device)");
  PassBytes(command, options, "--memory-budget",
            "Part of it for state and activations (default: as a server would divide it)");
  PassBytes(command, options, "--host-memory", "Each rank's host memory for what leaves the device");
  Pass(command, options, "--threads", "N", "Threads of each rank on cpu (default: this machine's, divided)")
      ->check(CLI::Range(1, 4096).description(""));
}

void AddLinkOption(CLI::App* command, MeshOptions* options, const std::string& name, const std::string& help,
                   const NumberRange& range) {
  auto number = std::make_shared<double>(0);
  AddNumber(command, name, *number, help, range)
      ->type_name("X")
      ->each([options, name, number](const std::string& text) {
        options->passed.insert(options->passed.end(), {name, text});
      });
}

}  // namespace

void AddMeshCommand(CLI::App& app, Runner& run) {
  auto options = std::make_shared<MeshOptions>();
  CLI::App* command = app.add_subcommand(
      "mesh", "Rank every mesh of so many workers by predicted time, and say which are impossible; needs no server");
  AddModelOptions(command, options.get());
  AddDeviceOptions(command, options.get());
  AddLinkOption(command, options.get(), "--link-bytes-per-s",
                "Bytes a second that a rank sends to others (default: as fast as to host memory)", kAboveZero);
  AddLinkOption(command, options.get(), "--link-latency-us",
                "Microseconds of each message inside of layers (default: 100)", kFromZero);
  AddOutputOption(command, &options->output);
  SetExamples(command,
              "  stemma mesh --model tiny --trace trace.jsonl --ranks 2\n"
              "  stemma mesh --model qwen3-8b --trace trace.jsonl --ranks 8 --device h200 --dtype bf16 \\\n"
              "      --link-bytes-per-s 4e11 --link-latency-us 10\n"
              "  stemma mesh --config run.yaml --trace trace.jsonl --ranks 8 --device h100 -o json");
  command->callback([&run, options] { run = [options] { return RunMesh(*options); }; });
}

}  // namespace stemma::cli
