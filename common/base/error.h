// How a reason travels in an absl::Status: as a google.rpc.Status in the payload "stemma.dev/status", with ErrorInfo
// (domain "stemma"), BadRequest and RetryInfo. The rpc folders send it as grpc-status-details-bin.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/error_reasons.h"
#include "google/rpc/status.pb.h"
#include "stemma/v1/training.pb.h"

namespace stemma {

struct FieldViolation {
  std::string field;  // "groups[3].rollouts[1].old_log_probs"
  std::string description;
};

struct ErrorDetails {
  std::string uid = "";                               // of the group that the error is about
  std::string field = "";                             // the first violation's when empty
  std::vector<FieldViolation> violations = {};        // any number: 20 travel at most, the count always does (metadata
                                                      // "violations", which a caller that kept only some sets itself)
  absl::Duration retry_after = absl::ZeroDuration();  // zero: as the reason's row says
  std::map<std::string, std::string> metadata = {};   // "step", "lineage", ...: short
};

// The text, or its begin and "...", cut between characters: what a client sent may stand in an error, and an error
// whose text is not UTF-8 loses its details on the way. REQUIRES: bytes_max > 3.
std::string Shortened(const std::string& text, size_t bytes_max);

// Makes an error of this program: code and RetryInfo are those of the reason's row.
absl::Status MakeError(Reason reason, const std::string& message, const ErrorDetails& details = {});

// Passes on an error that another process made: its reason may be none of ours. REQUIRES: a code that is not OK.
absl::Status RelayError(absl::StatusCode code, const std::string& reason, const std::string& message,
                        const ErrorDetails& details = {});

// Returns the error with another text; its code and all that travels with it stay.
absl::Status WithMessage(const absl::Status& error, std::string_view message);

// "" when the status carries none.
std::string ErrorReason(const absl::Status& status);
bool HasReason(const absl::Status& status, Reason reason);

// Returns what travelled: violations cut to those sent, the whole count in metadata "violations".
ErrorDetails GetErrorDetails(const absl::Status& status);

// Convert for the wire and back; code and message are the status's own.
google::rpc::Status ToRpcStatus(const absl::Status& status);
absl::Status FromRpcStatus(const google::rpc::Status& status);

// Convert the stored outcome of a request and back. USER: the request must change; SERVER: the server, its machine or
// its state was the cause.
v1::Failure ToFailure(const absl::Status& status);
absl::Status FromFailure(const v1::Failure& failure);

}  // namespace stemma
