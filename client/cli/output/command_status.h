// How a command ends: the exit codes of the CLI, and errors that remember which of them they mean.
//
// A command returns absl::Status. One made by a function of this file carries its exit code (and, for an RPC, the
// details that the server sent); any other error is exit code 1. main prints ErrorText to stderr and exits with
// ExitCodeOf.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "grpcpp/support/status.h"

namespace stemma::cli {

enum class ExitCode : int {
  kOk = 0,
  kOther = 1,
  kUsage = 2,       // options, files and configuration that the user gave
  kConnect = 3,     // no connection, or the deadline passed
  kNotServing = 4,  // connected, but loading, recovering or draining
  kPartial = 5,     // stopped before everything was done
  kRpc = 64,        // plus the gRPC status code
  kDamage = 93,     // `stemma local`: what is kept is damaged, and starting again does not help
};

absl::Status UsageError(std::string_view message);
absl::Status ConnectError(std::string_view message);
absl::Status NotServingError(std::string_view message);
absl::Status PartialError(std::string_view message);
absl::Status DamageError(std::string_view message);

// The outcome of a call. UNAVAILABLE without a reason of ours, and DEADLINE_EXCEEDED: kConnect; UNAVAILABLE with reason
// STARTING, RECOVERING or DRAINING: kNotServing; else kRpc + code.
absl::Status RpcStatus(const grpc::Status& status);

// The same for a call's error in Abseil's form, details as common/base/error.h keeps them (a request's stored Failure).
absl::Status WithRpcExitCode(const absl::Status& status);

// True: the same request may be sent again with the same id (no connection, or the server asks to come back later).
bool IsRetryable(const absl::Status& status);

int ExitCodeOf(const absl::Status& status);

// "error: message" (of a server: "error: CODE: message"), then a line each for the reason, its metadata, the field
// violations, the retry delay.
std::string ErrorText(const absl::Status& status);

}  // namespace stemma::cli
