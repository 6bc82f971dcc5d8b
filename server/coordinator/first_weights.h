// The checkpoint whose weights a server that starts on a data directory will load first. Pure, but for a warning: what
// Storage found decides.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "server/coordinator/storage.h"

namespace stemma::server {

// Returns the checkpoint with which a new journal begins, as --resume says; empty: none, or the journal is not new.
// Errors, of a new journal: InvalidArgument - none has the name that was given; FailedPrecondition - the newest one is
// wanted, and none of the folders beside a new journal is whole: the model directory's weights would silently take the
// place of theirs.
absl::StatusOr<std::string> ChooseResumed(const std::string& resume, const Storage& storage);

// Returns the checkpoint with which recovery begins, of those that are there. `resumed`: what ChooseResumed returned;
// empty: the weights are the model directory's.
std::string ChooseFirst(const std::string& resumed, bool replays, const Storage& storage);

// Refuses to recover from requests that another version of this program kept: FailedPrecondition, which names the
// first. Its steps, computed by other rules, would be others than those that clients were told of. Where a checkpoint
// that is marked damaged covers them, the server starts: it cannot serve, but verify a copy that was put back.
absl::Status CheckKeptRequests(bool replays, const Storage& storage);

}  // namespace stemma::server
