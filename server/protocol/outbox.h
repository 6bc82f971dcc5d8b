// The decision that is being made of one event: its actions, in the order in which they are executed, and the reason
// that is logged. Every part of the coordinator adds to the same one.
//
// Thread safety: none; owned by CoordinatorState, which begins it with each event and takes it at the end.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "absl/time/time.h"
#include "server/protocol/events.h"

namespace stemma::server {

class Outbox {
 public:
  // Begins the decision on an event that came at `now`.
  void Begin(absl::Time now);
  Decision Take();
  absl::Time now() const { return now_; }

  void Add(Action action);
  void Reply(CallId call, stemma::server::Reply reply);
  // Adds to the reason; "; " parts what several add.
  void AddReason(std::string_view reason);

  void Send(SessionId session, internal::v1::Configure message);
  void Send(SessionId session, internal::v1::DropPayload message);
  void Send(SessionId session, internal::v1::Prepare message);
  void Send(SessionId session, internal::v1::Apply message);
  void Send(SessionId session, internal::v1::Abort message);
  void Send(SessionId session, internal::v1::LogProb message);
  void Send(SessionId session, internal::v1::Export message);
  void Send(SessionId session, internal::v1::Save message);
  void Send(SessionId session, internal::v1::Shutdown message);

 private:
  // Adds a message to be filled.
  internal::v1::ServerMessage& AddMessage(SessionId session);

  absl::Time now_;
  Decision decision_;
};

}  // namespace stemma::server
