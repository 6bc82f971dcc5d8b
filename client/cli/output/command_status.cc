#include "client/cli/output/command_status.h"

#include <optional>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "common/base/exit_codes.h"
#include "common/base/printable.h"
#include "google/rpc/status.pb.h"

namespace stemma::cli {
namespace {

static_assert(static_cast<int>(ExitCode::kDamage) == kDoNotRestartExit);

constexpr char kExitCodeUrl[] = "stemma.cli/exit_code";

absl::Status WithExitCode(absl::Status status, int exit_code) {
  status.SetPayload(kExitCodeUrl, absl::Cord(absl::StrCat(exit_code)));
  return status;
}

absl::Status Make(absl::StatusCode code, std::string_view message, ExitCode exit_code) {
  return WithExitCode(absl::Status(code, {message.data(), message.size()}), static_cast<int>(exit_code));
}

bool IsNotServingReason(std::optional<Reason> reason) {
  return reason == Reason::kStarting || reason == Reason::kRecovering || reason == Reason::kDraining;
}

int RpcExitCode(absl::StatusCode code, std::string_view reason) {
  if (code == absl::StatusCode::kDeadlineExceeded) return static_cast<int>(ExitCode::kConnect);
  if (code == absl::StatusCode::kUnavailable && reason.empty()) return static_cast<int>(ExitCode::kConnect);
  if (code == absl::StatusCode::kUnavailable && IsNotServingReason(FindReason(reason))) {
    return static_cast<int>(ExitCode::kNotServing);
  }
  return static_cast<int>(ExitCode::kRpc) + static_cast<int>(code);
}

void AppendLine(std::string& text, std::string_view key, std::string_view value) {
  if (!value.empty()) text.append("\n  ").append(key).append(": ").append(value);
}

}  // namespace

absl::Status UsageError(std::string_view message) {
  return Make(absl::StatusCode::kInvalidArgument, message, ExitCode::kUsage);
}

absl::Status ConnectError(std::string_view message) {
  return Make(absl::StatusCode::kUnavailable, message, ExitCode::kConnect);
}

absl::Status NotServingError(std::string_view message) {
  return Make(absl::StatusCode::kUnavailable, message, ExitCode::kNotServing);
}

absl::Status PartialError(std::string_view message) {
  return Make(absl::StatusCode::kCancelled, message, ExitCode::kPartial);
}

absl::Status DamageError(std::string_view message) {
  return Make(absl::StatusCode::kDataLoss, message, ExitCode::kDamage);
}

absl::Status RpcStatus(const grpc::Status& status) {
  google::rpc::Status details;
  if (!details.ParseFromString(status.error_details())) details.Clear();
  // The numbers of gRPC's and Abseil's codes are the same.
  details.set_code(status.error_code());
  // gRPC itself answers so, without a word.
  const bool unknown = status.error_code() == grpc::StatusCode::UNIMPLEMENTED && status.error_message().empty();
  details.set_message(unknown
                          ? "the server does not know this call, or cannot read it: it may be older than this client"
                          : status.error_message());
  return WithRpcExitCode(FromRpcStatus(details));
}

absl::Status WithRpcExitCode(const absl::Status& status) {
  return status.ok() ? status : WithExitCode(status, RpcExitCode(status.code(), ErrorReason(status)));
}

bool IsRetryable(const absl::Status& status) {
  return status.code() == absl::StatusCode::kUnavailable || GetErrorDetails(status).retry_after > absl::ZeroDuration();
}

int ExitCodeOf(const absl::Status& status) {
  if (status.ok()) return static_cast<int>(ExitCode::kOk);
  int exit_code = static_cast<int>(ExitCode::kOther);
  if (const auto payload = status.GetPayload(kExitCodeUrl)) {
    if (!absl::SimpleAtoi(std::string(*payload), &exit_code)) return static_cast<int>(ExitCode::kOther);
  }
  return exit_code;
}

std::string ErrorText(const absl::Status& status) {
  // The code means something where a server gave it.
  const int exit_code = ExitCodeOf(status);
  const bool from_server =
      (exit_code >= static_cast<int>(ExitCode::kRpc) && exit_code != kDoNotRestartExit) || !ErrorReason(status).empty();
  std::string text = "error: ";
  if (from_server) absl::StrAppend(&text, absl::StatusCodeToString(status.code()), ": ");
  absl::StrAppend(&text, status.message());
  const ErrorDetails details = GetErrorDetails(status);
  AppendLine(text, "reason", ErrorReason(status));
  AppendLine(text, "group", details.uid);
  if (details.violations.empty()) AppendLine(text, "field", details.field);
  for (const FieldViolation& violation : details.violations) AppendLine(text, violation.field, violation.description);
  for (const auto& [key, value] : details.metadata) AppendLine(text, key, value);
  if (details.retry_after > absl::ZeroDuration()) {
    AppendLine(text, "retry after", absl::FormatDuration(details.retry_after));
  }
  return Printable(text, "\n");
}

}  // namespace stemma::cli
