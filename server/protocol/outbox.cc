#include "server/protocol/outbox.h"

#include <string>
#include <utility>

namespace stemma::server {

void Outbox::Begin(absl::Time now, FreeBytesFunction free_bytes, absl::Time time_of_day) {
  now_ = now;
  time_of_day_ = time_of_day;
  free_bytes_ = std::move(free_bytes);
  decision_ = Decision();
}

Decision Outbox::Take() { return std::exchange(decision_, Decision()); }

void Outbox::Add(Action action) { decision_.actions.push_back(std::move(action)); }

void Outbox::Reply(CallId call, stemma::server::Reply reply) { Add(ReplyAction{call, std::move(reply)}); }

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
