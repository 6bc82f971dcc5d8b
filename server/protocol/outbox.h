// The decision that is being made of one event: its actions, in the order in which they are executed, and the reasons
// that are logged. Every part of the coordinator adds to the same one.
//
// Thread safety: none; owned by CoordinatorState, which begins it with each event and takes it at the end.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/time/time.h"
#include "server/protocol/events.h"
#include "server/protocol/refusals.h"

namespace stemma::server {

// Asks what the journal's disk has left; nullopt: that is not known.
using FreeBytesFunction = std::function<std::optional<uint64_t>()>;

class Outbox {
 public:
  // Begins the decision on an event that came at `now`.
  void Begin(absl::Time now, FreeBytesFunction free_bytes = nullptr, absl::Time time_of_day = absl::UnixEpoch());
  Decision Take();
  absl::Time now() const { return now_; }
  // The time of day, for what people read: it may go back from one event to the next.
  absl::Time time_of_day() const { return time_of_day_; }
  // Asks what the journal's disk has left, and hangs where the disk does: for decisions that write to it.
  std::optional<uint64_t> FreeBytes() const { return free_bytes_ == nullptr ? std::nullopt : free_bytes_(); }

  void Add(Action action);
  // Counts it where it is a refusal because of the server's machine, and warns of it where no line does so already.
  void Reply(CallId call, stemma::server::Reply reply);
  const Refusals& refusals() const { return refusals_; }
  // Adds a line of the log at that level (LoggedReason).
  void AddReason(LogLevel level, std::string_view reason);
  void AddReason(std::string_view reason) { AddReason(LogLevel::kInfo, reason); }
  void AddWarning(std::string_view reason) { AddReason(LogLevel::kWarning, reason); }
  void AddError(std::string_view reason) { AddReason(LogLevel::kError, reason); }

  void Send(SessionId session, internal::v1::Configure message);
  void Send(SessionId session, internal::v1::DropPayload message);
  void Send(SessionId session, internal::v1::Prepare message);
  void Send(SessionId session, internal::v1::Apply message);
  void Send(SessionId session, internal::v1::Abort message);
  void Send(SessionId session, internal::v1::LogProb message);
  void Send(SessionId session, internal::v1::Verify message);
  void Send(SessionId session, internal::v1::Export message);
  void Send(SessionId session, internal::v1::Save message);
  void Send(SessionId session, internal::v1::Shutdown message);

 private:
  // Adds a message to be filled.
  internal::v1::ServerMessage& AddMessage(SessionId session);

  absl::Time now_, time_of_day_;
  FreeBytesFunction free_bytes_;
  Refusals refusals_;  // of all decisions
  Decision decision_;
};

}  // namespace stemma::server
