// The worker's part of an incident folder (common/base/incidents.h): rank-1.txt - why its session ended, what it did
// last, where its engine is, the last lines of its log. A worker that was killed leaves none.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "stemma/internal/v1/worker.pb.h"

namespace stemma::worker {

struct Evidence {
  absl::Status engine;  // not OK: it ended the session
  internal::v1::Heartbeat last;
  std::string stack;  // of the engine's thread; empty: it has ended, or does not answer
};

// Writes it into the data directory that the server named, where this host has it. What cannot be written is a line in
// the log.
void LeaveEvidence(const internal::v1::Configure& generation, const Evidence& evidence);

}  // namespace stemma::worker
