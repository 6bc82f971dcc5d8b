// What clients are told that depends on no job: errors of single calls, and the facts of the model and the server.
// Pure.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "server/protocol/coordinator_parts.h"

namespace stemma::server {

// Returns what an id that no record has is answered: it is no id, its record is no longer kept, or it never was.
absl::Status UnknownRequestError(const RequestTable& table, const std::string& id);
absl::Status RequestIdReusedError(const std::string& id);
// Adds to a refusal that a request of this id was accepted: who takes the refusal for its outcome, and sends the
// rollouts under another id, trains on them twice.
absl::Status RefusedButKnownError(const absl::Status& refused, const std::string& id);

std::string ExportsFolder(const std::string& data_directory);
// Where an export of this name stands, or is to stand.
std::string ExportPath(const std::string& data_directory, const std::string& name);
// `facts`: what is known of it beside its name and path, for the error's metadata.
absl::Status ExportExistsError(const std::string& path, const std::map<std::string, std::string>& facts);
// Errors: InvalidArgument, which names the field: name, dtype.
absl::Status CheckExport(const v1::ExportWeightsRequest& request);

// Errors: InvalidArgument, which names the field: name, client_state.
absl::Status CheckSaveRequest(const v1::SaveCheckpointRequest& request);
// Checks the name of an export or a checkpoint. Errors: InvalidArgument, which names the field `name`.
absl::Status CheckNameField(const std::string& name);

// Errors: ResourceExhausted QUEUE_FULL - with `bytes` more there would be too many jobs, or too many bytes of them.
absl::Status CheckQueue(const v1::Limits& limits, uint64_t jobs, uint64_t queued_bytes, uint64_t bytes);

// `what`: how far the request came, " after ..."; empty: not begun.
absl::Status DrainingError(const std::string& what = "");

// Tells how far the workers are, and what stopped the last one that did not get there. REQUIRES: the gang does not
// serve.
std::string WhatWorkersLack(const CoordinatorParts& parts);
// OK, or why a server that does not drain accepts no job now.
absl::Status ServingProblem(const CoordinatorParts& parts);

v1::ModelInfo ModelInfoOf(const CoordinatorParts& parts, bool draining);
v1::ServerInfo ServerInfoOf(const CoordinatorParts& parts);

}  // namespace stemma::server
