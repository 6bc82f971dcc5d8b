#include "server/protocol/gradient_problem.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/admission/run_numbers.h"
#include "common/base/dtype_names.h"
#include "common/base/error.h"
#include "server/protocol/step_messages.h"
#include "server/protocol/worker_messages.h"

namespace stemma::server {

std::string GradientProblem(const v1::AdamParams& adam, const internal::v1::Vote& vote, const v1::RunConfig& run) {
  if (!vote.yes()) {
    const bool nonfinite = vote.no_reason() == internal::v1::NONFINITE;
    return nonfinite ? absl::StrCat("the gradient is not finite: ", WorkerText(vote.message())) : "";
  }
  const double squared = vote.grad_norm_squared();
  if (!std::isfinite(squared)) return "the gradient is not finite: the norm overflows";
  const std::string problem =
      CheckClippedNorm(std::sqrt(squared), ClipFactor(adam, squared), NumbersOfRun(RunDtypeOf(run.dtype())));
  return problem.empty() ? "" : absl::StrCat("the gradient is too large: ", problem);
}

absl::Status NoVoteError(const internal::v1::Vote& vote) {
  if (vote.no_reason() == internal::v1::OUT_OF_MEMORY) {
    return MakeError(Reason::kGroupTooLarge, absl::StrCat("the worker ran out of memory: ", WorkerText(vote.message()),
                                                          "; send smaller groups"));
  }
  if (vote.no_reason() == internal::v1::DAMAGED_CHECKPOINT) {
    return MakeError(Reason::kCorruptCheckpoint, WorkerText(vote.message()));
  }
  return MakeError(Reason::kInternal, absl::StrCat("the worker failed: ", WorkerText(vote.message())));
}

}  // namespace stemma::server
