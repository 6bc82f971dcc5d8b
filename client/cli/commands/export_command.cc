// stemma export NAME: writes the current weights as a Hugging Face directory, prints its path; or removes one.
#include <iostream>
#include <memory>

#include "CLI/CLI.hpp"
#include "client/cli/calls/connection.h"
#include "client/cli/calls/shared_options.h"
#include "client/cli/commands/command.h"
#include "client/cli/output/request_records.h"
#include "common/base/dtype_names.h"
#include "common/base/option_checks.h"
#include "common/base/status_macros.h"

namespace stemma::cli {
namespace {

struct ExportOptions {
  ConnectionOptions server;
  OutputOptions output;
  std::string name;
  std::string dtype;
  double export_timeout_s = 3600;
  bool removes = false;
};

absl::Status RunDeletion(const ExportOptions& options) {
  ASSIGN_OR_RETURN(const auto connection, Connection::Open(options.server));
  v1::DeleteExportRequest request;
  request.set_name(options.name);
  return connection->Call(&v1::TrainingService::Stub::DeleteExport, request).status();
}

absl::Status RunExport(const ExportOptions& options) {
  ASSIGN_OR_RETURN(const auto connection, Connection::Open(options.server));
  v1::ExportWeightsRequest request;
  request.set_name(options.name);
  if (!options.dtype.empty()) request.set_dtype(options.dtype);
  ASSIGN_OR_RETURN(const auto response,
                   connection->CallFor(options.export_timeout_s, &v1::TrainingService::Stub::ExportWeights, request));
  if (options.output.format == OutputFormat::kJson) {
    WriteFields(options.output, MessageRecord(response), std::cout);
  } else {
    std::cout << response.path() << std::endl;
  }
  return absl::OkStatus();
}

}  // namespace

void AddExportCommand(CLI::App& app, Runner& run) {
  auto options = std::make_shared<ExportOptions>();
  CLI::App* command = app.add_subcommand(
      "export", "Write the current weights to <data>/exports/NAME on the server's machine and print that path");
  command->add_option("NAME", options->name, "Name of the export; a name, never a path")->required()->type_name("NAME");
  CLI::Option* removes = command->add_flag("--delete", options->removes, "Remove the export of that name instead");
  command->add_option("--dtype", options->dtype, "Store all tensors so (default: as the loaded files do)")
      ->check(OneOf({"float32", "float64", "bfloat16", "float16"}), "")
      ->transform(&LongDtypeName, "")
      ->excludes(removes)
      ->type_name("fp32|fp64|bf16|fp16");
  AddNumber(command, "--export-timeout", options->export_timeout_s, "Longest time that the export may take",
            kTimeoutRange)
      ->type_name("SECONDS")
      ->capture_default_str();
  AddServerOptions(command, &options->server);
  AddOutputOption(command, &options->output);
  SetExamples(command,
              "  stemma export step-100 --server 127.0.0.1:7070\n"
              "  stemma export exact --server 127.0.0.1:7070 --dtype fp64\n"
              "  stemma export step-100 --server 127.0.0.1:7070 --delete");
  command->callback(
      [&run, options] { run = [options] { return options->removes ? RunDeletion(*options) : RunExport(*options); }; });
}

}  // namespace stemma::cli
