// stemma status: the server, its workers, its configuration and its model.
#include <iostream>
#include <memory>

#include "CLI/CLI.hpp"
#include "client/cli/calls/connection.h"
#include "client/cli/calls/shared_options.h"
#include "client/cli/commands/command.h"
#include "client/cli/output/kernel_records.h"
#include "client/cli/output/request_records.h"
#include "client/cli/output/run_config_record.h"
#include "common/base/status_macros.h"

namespace stemma::cli {
namespace {

using Stub = v1::TrainingService::Stub;

struct StatusOptions {
  ConnectionOptions server;
  OutputOptions output;
};

bool IsServing(v1::ModelInfo::State state) { return state == v1::ModelInfo::IDLE || state == v1::ModelInfo::STEPPING; }

absl::Status RunStatus(const StatusOptions& options) {
  ASSIGN_OR_RETURN(const auto connection, Connection::Open(options.server));
  ASSIGN_OR_RETURN(const auto info, connection->Call(&Stub::GetServerInfo, v1::GetServerInfoRequest()));
  ASSIGN_OR_RETURN(const auto model, connection->Call(&Stub::GetModel, v1::GetModelRequest()));
  const std::vector<Record> kernels_off = KernelOffRecords(info);
  const bool json = options.output.format == OutputFormat::kJson;
  Record record;
  record["server"] = options.server.address;
  record["version"] = info.version();
  record["api"] = info.api();
  record["workers_connected"] = info.workers_connected();
  record["generation"] = info.generation();
  if (json) {
    record["ranks"] = RankRecords(info);
    record["kernels_off"] = kernels_off;
    record["links"] = LinkRecords(info);
  }
  record["model"] = MessageRecord(model);
  record["config"] = json ? MessageRecord(info.config()) : RunConfigRecord(info.config());
  record["loss_modes"] = std::vector<std::string>(info.loss_modes().begin(), info.loss_modes().end());
  record["loss_agg_modes"] = std::vector<std::string>(info.loss_agg_modes().begin(), info.loss_agg_modes().end());
  record["kl_loss_types"] = std::vector<std::string>(info.kl_loss_types().begin(), info.kl_loss_types().end());
  WriteFields(options.output, record, std::cout);
  if (!json && info.ranks_size() > 0) {
    std::cout << "\n";
    WriteRecords(options.output, RankColumns(), RankRecords(info), std::cout);
  }
  if (!json && !kernels_off.empty()) {
    std::cout << "\n";
    WriteRecords(options.output, KernelOffColumns(), kernels_off, std::cout);
  }
  if (!json && info.links_size() > 0) {
    std::cout << "\n";
    WriteRecords(options.output, LinkColumns(), LinkRecords(info), std::cout);
  }
  if (IsServing(model.state())) return absl::OkStatus();
  const std::string reason = model.state_reason().empty() ? "" : ": " + model.state_reason();
  return NotServingError("the server answers but does not serve: the model is " +
                         v1::ModelInfo::State_Name(model.state()) + reason);
}

}  // namespace

void AddStatusCommand(CLI::App& app, Runner& run) {
  auto options = std::make_shared<StatusOptions>();
  CLI::App* command = app.add_subcommand("status", "Show the server, its workers, its configuration and its model");
  AddServerOptions(command, &options->server);
  AddOutputOption(command, &options->output);
  SetExamples(command,
              "  stemma status --server 127.0.0.1:7070\n"
              "  stemma status --server 127.0.0.1:7070 -o json | jq .model.step");
  command->callback([&run, options] { run = [options] { return RunStatus(*options); }; });
}

}  // namespace stemma::cli
