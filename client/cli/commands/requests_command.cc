// stemma requests list|get|wait|cancel: the server's table of requests.
#include <iostream>
#include <memory>

#include "CLI/CLI.hpp"
#include "client/cli/calls/connection.h"
#include "client/cli/calls/shared_options.h"
#include "client/cli/commands/command.h"
#include "client/cli/output/request_records.h"
#include "common/base/request_state.h"
#include "common/base/status_macros.h"

namespace stemma::cli {
namespace {

using Stub = v1::TrainingService::Stub;

struct RequestsOptions {
  ConnectionOptions server;
  OutputOptions output;
  std::string request_id;
};

// One long poll; the call itself may take as long, and the usual timeout besides.
constexpr uint64_t kWaitMs = 20'000;

void PrintStatus(const RequestsOptions& options, const v1::RequestStatus& status) {
  Record record = RequestRecord(status);
  if (status.has_result()) {
    record["steps"] = Record::array();
    for (const v1::StepResult& step : status.result().steps()) record["steps"].push_back(StepRecord(step));
  }
  if (status.has_plan()) record["plan"] = PlanRecord(status.plan());
  if (options.output.format == OutputFormat::kJson) return WriteFields(options.output, record, std::cout);
  const Record steps = record.value("steps", Record::array());
  record.erase("steps");
  WriteFields(options.output, record, std::cout);
  if (steps.empty()) return;
  std::cout << "\n";
  const auto columns = Only(StepColumns(), {"step", "loss", "grad_norm", "tokens_logical", "tokens_computed",
                                            "tokens_saved", "seconds", "outcome"});
  WriteRecords(options.output, columns, std::vector<Record>(steps.begin(), steps.end()), std::cout);
}

absl::Status ListAllRequests(const RequestsOptions& options) {
  ASSIGN_OR_RETURN(const auto connection, Connection::Open(options.server));
  ASSIGN_OR_RETURN(const auto response, connection->Call(&Stub::ListRequests, v1::ListRequestsRequest()));
  std::vector<Record> records;
  for (const v1::RequestStatus& status : response.requests()) records.push_back(RequestRecord(status));
  if (records.empty()) std::cerr << "no requests yet" << std::endl;
  WriteRecords(options.output, RequestColumns(), records, std::cout);
  return absl::OkStatus();
}

absl::Status RunGet(const RequestsOptions& options) {
  ASSIGN_OR_RETURN(const auto connection, Connection::Open(options.server));
  v1::GetRequestRequest request;
  request.set_request_id(options.request_id);
  request.set_wait_ms(0);
  ASSIGN_OR_RETURN(const auto status, connection->Call(&Stub::GetRequest, request));
  PrintStatus(options, status);
  return absl::OkStatus();
}

// Polls until the request is final; its exit code is the request's outcome.
absl::Status RunWait(const RequestsOptions& options) {
  ASSIGN_OR_RETURN(const auto connection, Connection::Open(options.server));
  v1::GetRequestRequest request;
  request.set_request_id(options.request_id);
  request.set_wait_ms(kWaitMs);
  while (true) {
    ASSIGN_OR_RETURN(const auto status,
                     connection->CallFor(kWaitMs * 1e-3 + options.server.timeout_s, &Stub::GetRequest, request));
    if (!IsFinal(status.state())) continue;
    PrintStatus(options, status);
    return OutcomeStatus(status);
  }
}

absl::Status RunCancel(const RequestsOptions& options) {
  ASSIGN_OR_RETURN(const auto connection, Connection::Open(options.server));
  v1::CancelRequestRequest request;
  request.set_request_id(options.request_id);
  ASSIGN_OR_RETURN(const auto status, connection->Call(&Stub::CancelRequest, request));
  PrintStatus(options, status);
  return absl::OkStatus();
}

void AddOne(CLI::App* parent, Runner& run, const std::string& name, const std::string& help, const std::string& example,
            absl::Status (*function)(const RequestsOptions&)) {
  auto options = std::make_shared<RequestsOptions>();
  CLI::App* command = parent->add_subcommand(name, help);
  if (function != &ListAllRequests) {
    command->add_option("ID", options->request_id, "The request_id")->required()->type_name("ID");
  }
  AddServerOptions(command, &options->server);
  AddOutputOption(command, &options->output);
  SetExamples(command, example);
  command->callback([&run, options, function] { run = [options, function] { return function(*options); }; });
}

}  // namespace

void AddRequestsCommand(CLI::App& app, Runner& run) {
  CLI::App* requests = app.add_subcommand("requests", "List, show, await or cancel requests");
  requests->require_subcommand(1);
  AddOne(requests, run, "list", "List the requests that the server remembers, oldest first",
         "  stemma requests list --server 127.0.0.1:7070 -o json", &ListAllRequests);
  AddOne(requests, run, "get", "Show one request as it stands", "  stemma requests get run/12 --server 127.0.0.1:7070",
         &RunGet);
  AddOne(requests, run, "wait", "Wait until a request is final; the exit code is its outcome",
         "  stemma requests wait run/12 --server 127.0.0.1:7070", &RunWait);
  AddOne(requests, run, "cancel", "Stop a request between two optimizer steps; committed steps stay",
         "  stemma requests cancel run/12 --server 127.0.0.1:7070", &RunCancel);
}

}  // namespace stemma::cli
