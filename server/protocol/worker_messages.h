// What a worker may say: the checks that need no state. A message that fails one breaks the protocol, and its sender
// loses its session; nothing that a worker sends may end the server or reach a client unchecked.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "stemma/internal/v1/worker.pb.h"
#include "stemma/v1/training.pb.h"

namespace stemma::server {

// Errors: InvalidArgument, which names the field: a kind that is not known, a name too long or of other characters, a
// number that is negative or not finite where none may be, a yes vote with a reason for no.
absl::Status CheckWorkerMessage(const internal::v1::WorkerMessage& message);

// A worker's text as one line of at most 1,000 bytes, for logs and errors.
std::string WorkerText(std::string_view text);

// A worker's failure as clients see it: a code that is none of gRPC's errors becomes INTERNAL, as does a reason that is
// not in the table of reasons; texts are cut.
absl::Status FailureOfWorker(const v1::Failure& failure);

}  // namespace stemma::server
