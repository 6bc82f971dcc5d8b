// What a scenario's ranks answer of jobs that are no steps.
#pragma once

#include "absl/status/status.h"
#include "common/base/error.h"
#include "stemma/internal/v1/worker.pb.h"
#include "tests/server/protocol/scenario_plans.h"

namespace stemma::server {

// Log-probs of the group's one rollout: -1/4 each, of a dense run -1/2.
void FillResult(const Command& command, internal::v1::ResultChunk& chunk);

// The end of a job, or a failure.
template <typename Done>
void FillDone(const Command& command, Done& done) {
  done.set_id(command.words.at(1));
  if (command.Has("fail")) *done.mutable_failure() = ToFailure(MakeError(Reason::kInternal, "x"));
  if (command.Has("exists")) *done.mutable_failure() = ToFailure(absl::AlreadyExistsError("x"));
}

void FillVerifyDone(const Command& command, internal::v1::VerifyDone& done);

}  // namespace stemma::server
