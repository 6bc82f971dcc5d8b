// What the parts of CoordinatorState share: messages to the worker, errors. Included by its .cc files only.
#pragma once

#include <string>
#include <utility>

#include "common/base/error.h"
#include "server/protocol/coordinator_state.h"

namespace stemma::server {

// `what`: how far the request came, " after ..."; empty: not begun.
inline absl::Status DrainingError(const std::string& what = "") {
  return MakeError(Reason::kDraining, "the server stops" + what);
}

inline void Put(internal::v1::ServerMessage& to, internal::v1::Configure&& m) {
  *to.mutable_configure() = std::move(m);
}
inline void Put(internal::v1::ServerMessage& to, internal::v1::DropPayload&& m) { *to.mutable_drop() = std::move(m); }
inline void Put(internal::v1::ServerMessage& to, internal::v1::Prepare&& m) { *to.mutable_prepare() = std::move(m); }
inline void Put(internal::v1::ServerMessage& to, internal::v1::Apply&& m) { *to.mutable_apply() = std::move(m); }
inline void Put(internal::v1::ServerMessage& to, internal::v1::Abort&& m) { *to.mutable_abort() = std::move(m); }
inline void Put(internal::v1::ServerMessage& to, internal::v1::LogProb&& m) { *to.mutable_log_prob() = std::move(m); }
inline void Put(internal::v1::ServerMessage& to, internal::v1::Export&& m) { *to.mutable_export_() = std::move(m); }
inline void Put(internal::v1::ServerMessage& to, internal::v1::Shutdown&& m) { *to.mutable_shutdown() = std::move(m); }

// REQUIRES: a worker.
template <typename Message>
void CoordinatorState::SendToWorker(Message message) {
  SendAction action{.session = worker_->session, .message = {}};
  Put(action.message, std::move(message));
  decision_.actions.push_back(std::move(action));
}

// A plan is frozen, so one that was made for a worker that is lost is not made anew behind the client's back. Nothing
// of it was applied (its lineage would be lost), so its id is free: who sends it again gets a plan for the worker there
// is.
inline absl::Status PlanMisfit(const std::string& problem) {
  return MakeError(Reason::kAttemptsExhausted,
                   absl::StrCat("a worker with less memory has come: ", problem,
                                "; nothing was applied; the same request, sent again, is planned for it"));
}

}  // namespace stemma::server
