// The vote of a rank that could not prepare its step. Made by ModelEngine; pure.
#pragma once

#include "absl/status/status.h"
#include "stemma/internal/v1/worker.pb.h"

namespace stemma::worker {

// Makes a vote against the step, without its key. The reason follows from the code: Cancelled, ResourceExhausted (out
// of memory), Aborted (another rank could not), else INTERNAL. REQUIRES: `why` is not OK.
internal::v1::Vote NoVote(const absl::Status& why);

}  // namespace stemma::worker
