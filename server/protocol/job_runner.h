// Begins the next job when none runs, and takes what a running log-prob pass or export brings.
//
// Thread safety: none; owned by CoordinatorState.
// Invariants:
//  (1) jobs run one at a time, in the order of the queue, on a gang that serves, and none begins while draining.
//  (2) what a rank sends of a job reaches its client only while the job runs, and checked
//  (server/protocol/result_check.h).
#pragma once

#include <string>

#include "server/protocol/coordinator_parts.h"
#include "server/protocol/membership.h"
#include "server/protocol/step_protocol.h"

namespace stemma::server {

class JobRunner {
 public:
  // `membership` and `steps` outlive it.
  JobRunner(const CoordinatorParts& parts, Membership* membership, StepProtocol* steps)
      : p_(parts), membership_(membership), steps_(steps) {}

  void StartNext();
  void OnResultChunk(uint32_t rank, const internal::v1::ResultChunk& chunk);
  void OnLogProbDone(uint32_t rank, const internal::v1::LogProbDone& done);
  void OnExportDone(uint32_t rank, const internal::v1::ExportDone& done);

 private:
  void Start(const std::string& id, const LogProbJob& job);
  void Start(const std::string& id, const ExportJob& job);
  // Null: it does not run, its rank has ended it, or it is of the other kind; then the message is dealt with.
  const CallJob* FindRunning(uint32_t rank, const std::string& id, bool is_export);

  const CoordinatorParts p_;
  Membership* const membership_;
  StepProtocol* const steps_;
};

}  // namespace stemma::server
