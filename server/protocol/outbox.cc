#include "server/protocol/outbox.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/match.h"

namespace stemma::server {
namespace {

// Whether a line of the log tells of it already, as of a save that failed.
bool Says(const std::vector<LoggedReason>& reasons, const std::string& text) {
  return std::any_of(reasons.begin(), reasons.end(), [&](const LoggedReason& reason) {
    return reason.level != LogLevel::kInfo && absl::StrContains(reason.text, text);
  });
}

}  // namespace

void Outbox::Begin(absl::Time now, FreeBytesFunction free_bytes, absl::Time time_of_day) {
  now_ = now;
  time_of_day_ = time_of_day;
  free_bytes_ = std::move(free_bytes);
  decision_ = Decision();
}

Decision Outbox::Take() { return std::exchange(decision_, Decision()); }

void Outbox::Add(Action action) { decision_.actions.push_back(std::move(action)); }

void Outbox::Reply(CallId call, stemma::server::Reply reply) {
  if (const auto* status = std::get_if<absl::Status>(&reply)) {
    const std::optional<std::string> line = refusals_.Count(now_, *status);
    if (line && !Says(decision_.reasons, std::string(status->message()))) AddWarning(*line);
  }
  Add(ReplyAction{call, std::move(reply)});
}

void Outbox::AddReason(LogLevel level, std::string_view reason) {
  decision_.reasons.push_back({.level = level, .text = std::string(reason)});
}

internal::v1::ServerMessage& Outbox::AddMessage(SessionId session) {
  Add(SendAction{.session = session, .message = {}});
  return std::get<SendAction>(decision_.actions.back()).message;
}

void Outbox::Send(SessionId session, internal::v1::Configure message) {
  *AddMessage(session).mutable_configure() = std::move(message);
}

void Outbox::Send(SessionId session, internal::v1::DropPayload message) {
  *AddMessage(session).mutable_drop() = std::move(message);
}

void Outbox::Send(SessionId session, internal::v1::Prepare message) {
  *AddMessage(session).mutable_prepare() = std::move(message);
}

void Outbox::Send(SessionId session, internal::v1::Apply message) {
  *AddMessage(session).mutable_apply() = std::move(message);
}

void Outbox::Send(SessionId session, internal::v1::Abort message) {
  *AddMessage(session).mutable_abort() = std::move(message);
}

void Outbox::Send(SessionId session, internal::v1::LogProb message) {
  *AddMessage(session).mutable_log_prob() = std::move(message);
}

void Outbox::Send(SessionId session, internal::v1::Verify message) {
  *AddMessage(session).mutable_verify() = std::move(message);
}

void Outbox::Send(SessionId session, internal::v1::Export message) {
  *AddMessage(session).mutable_export_() = std::move(message);
}

void Outbox::Send(SessionId session, internal::v1::Save message) {
  *AddMessage(session).mutable_save() = std::move(message);
}

void Outbox::Send(SessionId session, internal::v1::Shutdown message) {
  *AddMessage(session).mutable_shutdown() = std::move(message);
}

}  // namespace stemma::server
