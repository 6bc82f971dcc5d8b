// stemma checkpoint save|load|list|verify|pin|unpin|delete: the server's checkpoints.
#include <iostream>
#include <memory>
#include <optional>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "client/cli/calls/connection.h"
#include "client/cli/calls/shared_options.h"
#include "client/cli/commands/command.h"
#include "client/cli/output/command_status.h"
#include "client/cli/output/request_records.h"
#include "common/base/error.h"
#include "common/base/file.h"
#include "common/base/status_macros.h"
#include "common/base/temporary_file.h"

namespace stemma::cli {
namespace {

using Stub = v1::TrainingService::Stub;

constexpr uint64_t kClientStateBytesMax = 1u << 20;

struct CheckpointOptions {
  ConnectionOptions server;
  OutputOptions output;
  std::string name;
  std::string client_state;  // the file that it comes from, or goes to
  bool pinned = false;
  double disk_timeout_s = 3600;
};

Record CheckpointRecord(const v1::Checkpoint& checkpoint) {
  Record record = MessageRecord(checkpoint);
  const absl::Time saved = absl::UnixEpoch() + absl::Seconds(checkpoint.saved_at_s());
  record["saved"] = absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", saved, absl::UTCTimeZone());
  return record;
}

std::vector<Column> CheckpointColumns() {
  return {{"name", "name", 4, true},     {"step", "step"},          {"lineage", "lineage", 7, true},
          {"dtype", "dtype", 5, true},   {"bytes", "bytes"},        {"saved", "saved", 5, true},
          {"pinned", "pinned", 6, true}, {"base", "base", 4, true}, {"damage", "damage", 6, true}};
}

absl::Status PrintCheckpoint(const CheckpointOptions& options, const v1::Checkpoint& checkpoint) {
  WriteFields(options.output, CheckpointRecord(checkpoint), std::cout);
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadClientState(const std::string& path) {
  const absl::StatusOr<std::string> resolved = ResolvePath(path);
  absl::StatusOr<std::string> content = resolved.ok() ? ReadFile(*resolved, kClientStateBytesMax) : resolved.status();
  if (!content.ok()) return UsageError(absl::StrCat("--client-state: ", content.status().message()));
  return content;
}

absl::Status RunSave(const CheckpointOptions& options) {
  v1::SaveCheckpointRequest request;
  request.set_name(options.name);
  request.set_pinned(options.pinned);
  if (!options.client_state.empty()) {
    ASSIGN_OR_RETURN(*request.mutable_client_state(), ReadClientState(options.client_state));
  }
  ASSIGN_OR_RETURN(const auto connection, Connection::Open(options.server));
  ASSIGN_OR_RETURN(const auto saved, connection->CallFor(options.disk_timeout_s, &Stub::SaveCheckpoint, request));
  return PrintCheckpoint(options, saved);
}

absl::Status RunLoad(const CheckpointOptions& options) {
  std::optional<TemporaryFile> client_state;  // first: a load is not taken back for a folder that is not there
  if (!options.client_state.empty()) {
    absl::StatusOr<TemporaryFile> file = TemporaryFile::Create(options.client_state);
    if (!file.ok()) return UsageError(absl::StrCat("--client-state-out: ", file.status().message()));
    client_state.emplace(*std::move(file));
  }
  ASSIGN_OR_RETURN(const auto connection, Connection::Open(options.server));
  v1::LoadCheckpointRequest request;
  request.set_name(options.name);
  ASSIGN_OR_RETURN(const auto loaded, connection->CallFor(options.disk_timeout_s, &Stub::LoadCheckpoint, request));
  const bool lacks_state = client_state && loaded.client_state().empty();
  if (client_state && !lacks_state) {
    RETURN_IF_ERROR(client_state->Write(loaded.client_state()));
    RETURN_IF_ERROR(client_state->Commit());
  }
  Record record;
  record["name"] = loaded.checkpoint().name();
  record["lineage"] = loaded.lineage();
  record["step"] = loaded.step();
  record["weight_version"] = loaded.weight_version();
  record["client_state_bytes"] = loaded.client_state().size();
  WriteFields(options.output, record, std::cout);
  if (!lacks_state) return absl::OkStatus();
  return PartialError(
      absl::StrCat("it is loaded, and nothing was kept with it: ", options.client_state, " is not written"));
}

absl::Status ListAllCheckpoints(const CheckpointOptions& options) {
  ASSIGN_OR_RETURN(const auto connection, Connection::Open(options.server));
  ASSIGN_OR_RETURN(const auto response, connection->Call(&Stub::ListCheckpoints, v1::ListCheckpointsRequest()));
  std::vector<Record> records;
  for (const v1::Checkpoint& checkpoint : response.checkpoints()) {
    records.push_back(CheckpointRecord(checkpoint));
    records.back()["base"] = checkpoint.name() == response.base();
  }
  if (records.empty()) std::cerr << "no checkpoints yet" << std::endl;
  WriteRecords(options.output, CheckpointColumns(), records, std::cout);
  return absl::OkStatus();
}

// Its exit code says whether the checkpoint is sound.
absl::Status RunVerify(const CheckpointOptions& options) {
  ASSIGN_OR_RETURN(const auto connection, Connection::Open(options.server));
  v1::VerifyCheckpointRequest request;
  request.set_name(options.name);
  ASSIGN_OR_RETURN(const auto verified, connection->CallFor(options.disk_timeout_s, &Stub::VerifyCheckpoint, request));
  RETURN_IF_ERROR(PrintCheckpoint(options, verified));
  if (verified.damage().empty()) return absl::OkStatus();
  return WithRpcExitCode(MakeError(Reason::kCorruptCheckpoint, verified.damage()));
}

absl::Status Pin(const CheckpointOptions& options, bool pinned) {
  ASSIGN_OR_RETURN(const auto connection, Connection::Open(options.server));
  v1::PinCheckpointRequest request;
  request.set_name(options.name);
  request.set_pinned(pinned);
  ASSIGN_OR_RETURN(const auto checkpoint, connection->Call(&Stub::PinCheckpoint, request));
  return PrintCheckpoint(options, checkpoint);
}

absl::Status RunPin(const CheckpointOptions& options) { return Pin(options, /*pinned=*/true); }

absl::Status RunUnpin(const CheckpointOptions& options) { return Pin(options, /*pinned=*/false); }

absl::Status RunDelete(const CheckpointOptions& options) {
  ASSIGN_OR_RETURN(const auto connection, Connection::Open(options.server));
  v1::DeleteCheckpointRequest request;
  request.set_name(options.name);
  return connection->Call(&Stub::DeleteCheckpoint, request).status();
}

struct Verb {
  const char* name;
  const char* help;
  const char* example;
  absl::Status (*run)(const CheckpointOptions&);
  bool named, reads_files;  // it takes a NAME; every byte of a checkpoint is read or written
};

constexpr Verb kVerbs[] = {
    {"save", "Save the training state after the requests that were accepted before, and print what was saved",
     "  stemma checkpoint save --name after-warmup --pinned --server 127.0.0.1:7070", &RunSave, false, true},
    {"load", "Go back to a checkpoint: steps after it are given up, under a new lineage",
     "  stemma checkpoint load after-warmup --server 127.0.0.1:7070 --client-state-out position.json", &RunLoad, true,
     true},
    {"list", "List the checkpoints, oldest first, and the one with which recovery would begin",
     "  stemma checkpoint list --server 127.0.0.1:7070 -o json", &ListAllCheckpoints, false, false},
    {"verify", "Read every byte of a checkpoint; the exit code says whether it is what was saved",
     "  stemma checkpoint verify step-00000100 --server 127.0.0.1:7070", &RunVerify, true, true},
    {"pin", "Let a checkpoint stay until it is deleted",
     "  stemma checkpoint pin step-00000100 --server 127.0.0.1:7070", &RunPin, true, false},
    {"unpin", "Let a checkpoint go once newer ones are there",
     "  stemma checkpoint unpin step-00000100 --server 127.0.0.1:7070", &RunUnpin, true, false},
    {"delete", "Remove a checkpoint; not the one with which recovery would begin",
     "  stemma checkpoint delete after-warmup --server 127.0.0.1:7070", &RunDelete, true, false}};

void AddVerb(CLI::App* parent, Runner& run, const Verb& verb) {
  auto options = std::make_shared<CheckpointOptions>();
  CLI::App* command = parent->add_subcommand(verb.name, verb.help);
  const bool loads = verb.run == &RunLoad;
  if (verb.named) {
    CLI::Option* name =
        command->add_option("NAME", options->name, loads ? "Its name (default: the newest one)" : "Its name");
    name->required(!loads)->type_name("NAME");
  }
  if (verb.run == &RunSave) {
    command->add_option("--name", options->name, "A name that no checkpoint has (default: step-00000120, by the step)")
        ->type_name("NAME");
    command->add_flag("--pinned", options->pinned, "Keep it until it is deleted");
    command->add_option("--client-state", options->client_state, "Keep this file with it, at most 1 MiB")
        ->type_name("FILE");
  }
  if (loads) {
    command->add_option("--client-state-out", options->client_state, "Write what was kept with it there")
        ->type_name("FILE");
  }
  if (verb.reads_files) {
    AddNumber(command, "--disk-timeout", options->disk_timeout_s, "Longest time that its files may take", kTimeoutRange)
        ->type_name("SECONDS")
        ->capture_default_str();
  }
  AddServerOptions(command, &options->server);
  AddOutputOption(command, &options->output);
  SetExamples(command, verb.example);
  command->callback([&run, options, function = verb.run] { run = [options, function] { return function(*options); }; });
}

}  // namespace

void AddCheckpointCommand(CLI::App& app, Runner& run) {
  CLI::App* checkpoint = app.add_subcommand("checkpoint", "Save, load, list, verify, pin or delete checkpoints");
  checkpoint->require_subcommand(1);
  for (const Verb& verb : kVerbs) AddVerb(checkpoint, run, verb);
}

}  // namespace stemma::cli
