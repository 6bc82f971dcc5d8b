#include "common/base/error.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "google/rpc/error_details.pb.h"

namespace stemma {
namespace {

constexpr char kPayload[] = "stemma.dev/status";
constexpr char kDomain[] = "stemma";
constexpr size_t kMaxViolations = 20;
constexpr size_t kMaxTextBytes = 160;
// gRPC's metadata holds 8 KiB: the message, percent-encoded, and the details with the message again, in base64.
constexpr size_t kMaxDetailsBytes = 4000;
constexpr size_t kErrorBytesMax = 1000;

// Cut so that it takes at most kErrorBytesMax where it is percent-encoded: what a client sent may be in it.
std::string ShortMessage(const std::string& text) {
  size_t encoded = 0, end = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if ((byte & 0xc0) != 0x80 && encoded <= kErrorBytesMax - 3) end = i;
    encoded += byte >= 0x20 && byte < 0x7f && byte != '%' ? 1 : 3;
    if (encoded > kErrorBytesMax) return text.substr(0, end) + "...";
  }
  return text;
}

void AddErrorInfo(const std::string& reason, const ErrorDetails& details, google::rpc::Status& status) {
  google::rpc::ErrorInfo info;
  info.set_reason(reason);
  info.set_domain(kDomain);
  for (const auto& [key, value] : details.metadata) (*info.mutable_metadata())[key] = Shortened(value, kMaxTextBytes);
  if (!details.uid.empty()) (*info.mutable_metadata())["uid"] = Shortened(details.uid, kMaxTextBytes);
  std::string field = details.field;
  if (field.empty() && !details.violations.empty()) field = details.violations[0].field;
  if (!field.empty()) (*info.mutable_metadata())["field"] = Shortened(field, kMaxTextBytes);
  if (!details.violations.empty() && !details.metadata.contains("violations")) {
    (*info.mutable_metadata())["violations"] = absl::StrCat(details.violations.size());
  }
  status.add_details()->PackFrom(info);
}

void AddBadRequest(const std::vector<FieldViolation>& violations, google::rpc::Status& status) {
  google::rpc::BadRequest bad_request;
  size_t bytes = status.ByteSizeLong();
  for (const FieldViolation& violation : violations) {
    if (static_cast<size_t>(bad_request.field_violations_size()) == kMaxViolations) break;
    const std::string field = Shortened(violation.field, kMaxTextBytes),
                      description = Shortened(violation.description, kMaxTextBytes);
    bytes += field.size() + description.size() + 8;
    if (bytes > kMaxDetailsBytes) break;
    auto* added = bad_request.add_field_violations();
    added->set_field(field);
    added->set_description(description);
  }
  status.add_details()->PackFrom(bad_request);
}

void AddRetryInfo(absl::Duration retry_after, google::rpc::Status& status) {
  google::rpc::RetryInfo retry;
  const int64_t milliseconds = absl::ToInt64Milliseconds(retry_after);
  retry.mutable_retry_delay()->set_seconds(milliseconds / 1000);
  retry.mutable_retry_delay()->set_nanos(static_cast<int32_t>(milliseconds % 1000 * 1000000));
  status.add_details()->PackFrom(retry);
}

bool IsUserError(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated:
      return true;
    default:
      return false;
  }
}

// A reason that is none of ours has no row, so its code decides.
Category CategoryOf(const absl::Status& status) {
  const std::optional<Reason> reason = FindReason(ErrorReason(status));
  if (reason) return RowOf(*reason).category;
  return IsUserError(status.code()) ? Category::kUser : Category::kServer;
}

}  // namespace

std::string Shortened(const std::string& text, size_t bytes_max) {
  if (text.size() <= bytes_max) return text;
  size_t end = bytes_max - 3;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  return text.substr(0, end) + "...";
}

absl::Status MakeError(Reason reason, const std::string& message, const ErrorDetails& details) {
  const ReasonRow& row = RowOf(reason);
  ErrorDetails filled = details;
  if (row.retry && filled.retry_after == absl::ZeroDuration()) filled.retry_after = kRetryAfter;
  return RelayError(row.code, std::string(row.name), message, filled);
}

absl::Status RelayError(absl::StatusCode code, const std::string& reason, const std::string& message,
                        const ErrorDetails& details) {
  CHECK(code != absl::StatusCode::kOk) << reason;
  absl::Status result(code, ShortMessage(message));
  google::rpc::Status status;
  AddErrorInfo(reason, details, status);
  if (details.retry_after > absl::ZeroDuration()) AddRetryInfo(details.retry_after, status);
  if (!details.violations.empty()) AddBadRequest(details.violations, status);
  result.SetPayload(kPayload, absl::Cord(status.SerializeAsString()));
  return result;
}

google::rpc::Status ToRpcStatus(const absl::Status& status) {
  google::rpc::Status result;
  if (const auto payload = status.GetPayload(kPayload); payload.has_value()) {
    if (!result.ParseFromString(std::string(*payload))) result.Clear();
  }
  result.set_code(static_cast<int32_t>(status.code()));
  result.set_message(std::string(status.message()));
  return result;
}

absl::Status FromRpcStatus(const google::rpc::Status& status) {
  absl::Status result(static_cast<absl::StatusCode>(status.code()), status.message());
  if (result.ok() || status.details_size() == 0) return result;
  google::rpc::Status payload;
  *payload.mutable_details() = status.details();
  result.SetPayload(kPayload, absl::Cord(payload.SerializeAsString()));
  return result;
}

absl::Status WithMessage(const absl::Status& error, std::string_view message) {
  absl::Status told(error.code(), absl::string_view(message.data(), message.size()));
  error.ForEachPayload([&](absl::string_view url, const absl::Cord& payload) { told.SetPayload(url, payload); });
  return told;
}

std::string ErrorReason(const absl::Status& status) {
  const google::rpc::Status rpc_status = ToRpcStatus(status);
  google::rpc::ErrorInfo info;
  for (const auto& detail : rpc_status.details()) {
    if (detail.UnpackTo(&info)) return info.reason();
  }
  return "";
}

bool HasReason(const absl::Status& status, Reason reason) { return ErrorReason(status) == RowOf(reason).name; }

ErrorDetails GetErrorDetails(const absl::Status& status) {
  const google::rpc::Status rpc_status = ToRpcStatus(status);
  ErrorDetails details;
  for (const auto& detail : rpc_status.details()) {
    google::rpc::ErrorInfo info;
    google::rpc::BadRequest bad_request;
    google::rpc::RetryInfo retry;
    if (detail.UnpackTo(&info)) {
      for (const auto& [key, value] : info.metadata()) {
        if (key == "uid") {
          details.uid = value;
        } else if (key == "field") {
          details.field = value;
        } else {
          details.metadata[key] = value;
        }
      }
    } else if (detail.UnpackTo(&bad_request)) {
      for (const auto& v : bad_request.field_violations()) details.violations.push_back({v.field(), v.description()});
    } else if (detail.UnpackTo(&retry)) {
      details.retry_after =
          absl::Seconds(retry.retry_delay().seconds()) + absl::Nanoseconds(retry.retry_delay().nanos());
    }
  }
  return details;
}

v1::Failure ToFailure(const absl::Status& status) {
  const ErrorDetails details = GetErrorDetails(status);
  v1::Failure failure;
  failure.set_code(static_cast<uint32_t>(status.code()));
  failure.set_reason(ErrorReason(status));
  failure.set_category(CategoryOf(status) == Category::kUser ? "USER" : "SERVER");
  failure.set_message(std::string(status.message()));
  failure.set_uid(details.uid);
  failure.set_field(details.field);
  failure.mutable_metadata()->insert(details.metadata.begin(), details.metadata.end());
  return failure;
}

absl::Status FromFailure(const v1::Failure& failure) {
  // A failure is never OK, nor a code that gRPC does not have.
  const bool known = failure.code() >= 1 && failure.code() <= static_cast<uint32_t>(absl::StatusCode::kUnauthenticated);
  const auto code = known ? static_cast<absl::StatusCode>(failure.code()) : absl::StatusCode::kInternal;
  return RelayError(code, failure.reason(), failure.message(),
                    {.uid = failure.uid(),
                     .field = failure.field(),
                     .metadata = {failure.metadata().begin(), failure.metadata().end()}});
}

}  // namespace stemma
