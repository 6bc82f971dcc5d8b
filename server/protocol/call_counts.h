// How the log-prob passes, verifications and exports of clients ended since the server started: they leave no rows in
// the journal, of which the other totals are made (server/protocol/totals.h). Pure.
#pragma once

#include <cstdint>
#include <variant>

#include "server/protocol/events.h"
#include "server/protocol/job_queue.h"

namespace stemma::server {

struct CallCounts {
  struct Ends {
    uint64_t done = 0, failed = 0, cancelled = 0;  // cancelled: its client left
  };
  Ends log_prob_passes, verifications, exports;

  // Counts the end of a job; those of checkpoints are counted where they are saved.
  void Count(const CallJob& job, const Reply& reply) {
    const auto* said = std::get_if<absl::Status>(&reply);
    const absl::Status status = said == nullptr ? absl::OkStatus() : *said;
    if (std::holds_alternative<LogProbJob>(job.work)) CountIn(log_prob_passes, status);
    if (std::holds_alternative<VerifyJob>(job.work)) CountIn(verifications, status);
    if (std::holds_alternative<ExportJob>(job.work)) CountIn(exports, status);
  }

 private:
  static void CountIn(Ends& ends, const absl::Status& status) {
    ++(status.ok() ? ends.done : absl::IsCancelled(status) ? ends.cancelled : ends.failed);
  }
};

}  // namespace stemma::server
