#include "worker/engine/verification.h"

#include <optional>
#include <utility>

#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "worker/engine/exceptions.h"
#include "worker/engine/no_vote.h"
#include "worker/optim/kept_gradients.h"

namespace stemma::worker {
namespace {

// Says of each result that it is the dense run's.
EngineHooks HooksOfDense(const EngineHooks& hooks) {
  EngineHooks of_dense = hooks;
  of_dense.results = [&hooks](internal::v1::ResultChunk chunk) {
    chunk.set_dense(true);
    hooks.results(std::move(chunk));
  };
  return of_dense;
}

}  // namespace

absl::StatusOr<internal::v1::VerifyDone> RunVerification(const internal::v1::Verify& verify, const EngineHooks& hooks,
                                                         const VerificationRank& rank) {
  internal::v1::VerifyDone done;
  done.set_id(verify.id());
  const double start_s = RealClock().MonotonicSeconds();
  ASSIGN_OR_RETURN(*done.mutable_reuse(), rank.run(verify.reuse(), hooks));
  done.set_reuse_s(RealClock().MonotonicSeconds() - start_s);
  std::optional<KeptGradients> kept;
  absl::Status status;
  if (done.reuse().yes()) {
    status = CatchExceptions([&] {
      kept.emplace(rank.parameters, rank.counted);
      return absl::OkStatus();
    });
  }
  if (absl::IsUnavailable(status)) return status;
  ASSIGN_OR_RETURN(const bool all_can, rank.all_can(done.reuse().yes() && status.ok()));
  if (!all_can) {
    *done.mutable_dense() = NoVote(status.ok() ? absl::AbortedError("another rank could not") : status);
    return done;
  }
  const double dense_start_s = RealClock().MonotonicSeconds();
  ASSIGN_OR_RETURN(*done.mutable_dense(), rank.run(verify.dense(), HooksOfDense(hooks)));
  done.set_dense_s(RealClock().MonotonicSeconds() - dense_start_s);
  if (!done.dense().yes()) return done;
  status = CatchExceptions([&] {
    for (internal::v1::GradientError& error : kept->Compare(rank.parameters)) {
      *done.add_gradients() = std::move(error);
    }
    return absl::OkStatus();
  });
  if (absl::IsUnavailable(status)) return status;
  if (!status.ok()) *done.mutable_dense() = NoVote(status);
  return done;
}

}  // namespace stemma::worker
