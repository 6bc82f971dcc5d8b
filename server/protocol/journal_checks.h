// What must hold of the fold of all rows (journal_fold.h) before a server goes on from it: the state machine takes each
// of these for granted, and ends the process where one does not hold. Pure; asked once, at the start.
#pragma once

#include "absl/status/status.h"
#include "stemma/internal/v1/journal.pb.h"

namespace stemma::server {

// Errors: DataLoss - no server left this state; names the request.
absl::Status CheckJournalState(const internal::v1::JournalState& state);

}  // namespace stemma::server
