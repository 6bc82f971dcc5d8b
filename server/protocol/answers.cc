#include "server/protocol/answers.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/admission/log_prob_sources.h"
#include "common/base/dtype_names.h"
#include "common/base/error.h"
#include "common/base/message_sizes.h"
#include "common/base/names.h"
#include "common/trace/loss_names.h"
#include "server/protocol/checkpoint_rules.h"

namespace stemma::server {
namespace {

absl::Status InvalidField(const std::string& field, const std::string& message, const std::string& what) {
  return MakeError(Reason::kInvalidRequest, message, {.violations = {{field, what}}});
}

// Says whether ranks had the weights before: of this server, or of one whose journal it goes on with. Until they have
// them again the server recovers; else it starts.
bool ServedBefore(const CoordinatorParts& parts) {
  const internal::v1::JournalState& journal = parts.history.state();
  return parts.gang.ever_served() || journal.step() > 0 || !journal.model_digest().empty();
}

v1::ModelInfo::State StateOf(const CoordinatorParts& parts, bool draining) {
  if (draining) return v1::ModelInfo::DRAINING;
  if (!parts.lineage.unusable().empty()) return v1::ModelInfo::UNUSABLE;
  if (!parts.gang.serves()) return ServedBefore(parts) ? v1::ModelInfo::RECOVERING : v1::ModelInfo::LOADING;
  if (parts.lineage.behind()) return v1::ModelInfo::RECOVERING;
  return parts.jobs.running().is_update() ? v1::ModelInfo::STEPPING : v1::ModelInfo::IDLE;
}

// What a rank said last is of a job that has ended since, where nothing runs.
std::string PhaseOf(const CoordinatorParts& parts, const Gang::Worker& worker) {
  return worker.ready && !parts.jobs.running().exists() ? "idle" : worker.phase;
}

// Names that mean something else where a checkpoint's name is given, and could not be told from it there.
absl::Status CheckNotReserved(const std::string& name) {
  static constexpr std::array<std::pair<std::string_view, const char*>, 3> kReserved = {
      {{kPolicyWeights, "is what requests call the model's own weights"},
       {kResumeNewest, "is what --resume calls the newest checkpoint"},
       {kResumeNothing, "is what --resume calls no checkpoint"}}};
  for (const auto& [reserved, meaning] : kReserved) {
    if (name != reserved) continue;
    const std::string what = absl::StrCat(meaning, ": choose another name");
    return InvalidField("name", absl::StrCat("name ", name, " ", what), what);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status UnknownRequestError(const RequestTable& table, const std::string& id) {
  if (const absl::Status name = CheckRequestId(id); !name.ok()) {
    const std::string what(name.message());
    return InvalidField("request_id", absl::StrCat("request_id ", what), what);
  }
  if (table.IsExpired(id)) {
    return MakeError(
        Reason::kRequestIdExpired,
        absl::StrCat("request ", id, " ended long ago; its outcome is no longer kept (limits.requests_kept)"));
  }
  return MakeError(Reason::kNotFound, absl::StrCat("no request ", id, " was accepted"));
}

absl::Status RequestIdReusedError(const std::string& id) {
  return MakeError(
      Reason::kRequestIdReused,
      absl::StrCat("request ", id,
                   " was sent before with another payload; its outcome is there by that id "
                   "(GetRequest, client.attach): go on from it, or give each new request an id of its own"));
}

absl::Status RefusedButKnownError(const absl::Status& refused, const std::string& id) {
  return WithMessage(
      refused, absl::StrCat(std::string(refused.message()), "; a request ", id,
                            " was accepted before: if it is this one, ask for its outcome by that id (GetRequest, "
                            "client.attach), and do not send it under another"));
}

std::string ExportsFolder(const std::string& data_directory) { return absl::StrCat(data_directory, "/exports"); }

std::string ExportPath(const std::string& data_directory, const std::string& name) {
  return absl::StrCat(ExportsFolder(data_directory), "/", name);
}

absl::Status ExportExistsError(const std::string& path, const std::map<std::string, std::string>& facts) {
  const std::string name = path.substr(path.rfind('/') + 1);
  std::map<std::string, std::string> metadata = facts;
  metadata.insert({{"name", name}, {"path", path}});
  return MakeError(Reason::kExportExists,
                   absl::StrCat("an export named \"", name, "\" exists, or is being written: ", path,
                                " on the server's machine; choose another name, or remove it first"),
                   {.metadata = metadata});
}

absl::Status CheckExport(const v1::ExportWeightsRequest& request) {
  if (absl::Status status = CheckFileName(request.name()); !status.ok()) {
    return InvalidField("name", std::string(status.message()), std::string(status.message()));
  }
  static constexpr std::array kDtypes = {"float32", "float64", "bfloat16", "float16"};
  const std::string dtype = LongDtypeName(request.dtype());
  if (!request.has_dtype() || std::find(kDtypes.begin(), kDtypes.end(), dtype) != kDtypes.end()) {
    return absl::OkStatus();
  }
  const std::string text = absl::StrCat("is \"", absl::CEscape(request.dtype().substr(0, 40)),
                                        "\", must be one of: float32, float64, bfloat16, float16");
  return InvalidField("dtype", absl::StrCat("dtype ", text), text);
}

absl::Status CheckNameField(const std::string& name) {
  const absl::Status status = CheckFileName(name);
  if (status.ok()) return absl::OkStatus();
  return InvalidField("name", absl::StrCat("name ", status.message()), std::string(status.message()));
}

absl::Status CheckSaveRequest(const v1::SaveCheckpointRequest& request) {
  if (!request.name().empty()) {
    if (absl::Status status = CheckNameField(request.name()); !status.ok()) return status;
    if (absl::Status status = CheckNotReserved(request.name()); !status.ok()) return status;
  }
  if (request.client_state().size() > kClientStateBytesMax) {
    const std::string what = absl::StrCat("has ", request.client_state().size(), " bytes, at most ",
                                          kClientStateBytesMax, " are kept with a checkpoint");
    return InvalidField("client_state", absl::StrCat("client_state ", what), what);
  }
  return absl::OkStatus();
}

absl::Status CheckQueue(const v1::Limits& limits, uint64_t jobs, uint64_t queued_bytes, uint64_t bytes) {
  std::string what;
  if (jobs >= limits.requests_in_flight()) {
    what = absl::StrCat(jobs, " requests are in flight, the limit is ", limits.requests_in_flight());
  } else if (queued_bytes > 0 && queued_bytes + bytes > limits.request_bytes_in_flight()) {
    what = absl::StrCat(queued_bytes, " bytes of requests are in flight, with this one's ", bytes, " the limit of ",
                        limits.request_bytes_in_flight(), " is passed");
  } else {
    return absl::OkStatus();
  }
  return MakeError(Reason::kQueueFull, what + "; send it again when one of them has ended");
}

absl::Status DrainingError(const std::string& what) { return MakeError(Reason::kDraining, "the server stops" + what); }

std::string WhatWorkersLack(const CoordinatorParts& parts) {
  const Gang& gang = parts.gang;
  const auto ready = [](const Gang::Worker& worker) { return worker.ready; };
  const std::string of = absl::StrCat(" of ", gang.num_ranks(), " workers ");
  std::string text;
  if (gang.begun()) {
    text = absl::StrCat(std::count_if(gang.workers().begin(), gang.workers().end(), ready), of, "are ready");
  } else if (gang.full()) {
    text = parts.base.WhatIsAwaited();
  } else {
    text = absl::StrCat(gang.workers().size(), of, "are there");
  }
  return gang.trouble().empty() ? text : absl::StrCat(text, "; ", gang.trouble());
}

absl::Status ServingProblem(const CoordinatorParts& parts) {
  if (!parts.lineage.unusable().empty()) return parts.lineage.UnusableError();
  if (parts.lineage.behind() && parts.gang.serves()) {
    return MakeError(Reason::kRecovering, absl::StrCat("the weights are computed again: step ",
                                                       parts.lineage.weights_step(), " of ", parts.lineage.step()));
  }
  if (parts.gang.serves()) return absl::OkStatus();
  const std::string lack = WhatWorkersLack(parts);
  if (!ServedBefore(parts)) {
    return MakeError(Reason::kStarting, absl::StrCat("the workers have not loaded the model yet: ", lack));
  }
  const char* when = parts.gang.ever_served() ? "again" : "since the server was started again";
  return MakeError(Reason::kRecovering, absl::StrCat("the workers have not loaded the weights ", when, ": ", lack));
}

v1::ModelInfo ModelInfoOf(const CoordinatorParts& parts, bool draining) {
  const ModelConfig& model = parts.options.model;
  v1::ModelInfo info;
  info.set_state(StateOf(parts, draining));
  const std::string& unusable = parts.lineage.unusable();
  info.set_state_reason(unusable.empty() ? std::string(ServingProblem(parts).message()) : unusable);
  info.set_step(parts.lineage.step());
  info.set_weight_version(parts.lineage.weight_version());
  info.set_lineage(parts.lineage.name());
  info.set_model_type(model.model_type);
  info.set_num_parameters(model.num_parameters());
  info.set_vocab_size(model.vocab_size);
  info.set_max_positions(model.max_positions);
  return info;
}

v1::ServerInfo ServerInfoOf(const CoordinatorParts& parts) {
  v1::ServerInfo info;
  info.set_version(parts.options.version);
  info.set_api("stemma.v1");
  for (std::string_view name : LossModeNames()) info.add_loss_modes(std::string(name));
  for (std::string_view name : AggModeNames()) info.add_loss_agg_modes(std::string(name));
  for (std::string_view name : KlTypeNames()) info.add_kl_loss_types(std::string(name));
  *info.mutable_config() = parts.gang.config();
  info.set_workers_connected(static_cast<uint32_t>(parts.gang.workers().size()));
  info.set_generation(parts.gang.generation());
  for (const Gang::Worker& worker : parts.gang.workers()) {
    v1::RankInfo& rank = *info.add_ranks();
    rank.set_rank(static_cast<uint32_t>(info.ranks_size() - 1));
    rank.set_host(worker.host);
    rank.set_device(worker.device.Text());
    rank.set_pid(worker.pid);
    rank.set_phase(PhaseOf(parts, worker));
    rank.set_device_name(worker.device_name);
    rank.mutable_kernels_off()->Add(worker.kernels_off.begin(), worker.kernels_off.end());
  }
  if (parts.gang.serves()) info.mutable_links()->Add(parts.gang.links().begin(), parts.gang.links().end());
  return info;
}

}  // namespace stemma::server
