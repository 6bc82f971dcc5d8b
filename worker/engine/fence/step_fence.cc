#include "worker/engine/fence/step_fence.h"

#include "absl/strings/str_cat.h"
#include "common/base/step_key.h"
#include "glog/logging.h"

namespace stemma::worker {

using internal::v1::StepKey;

absl::Status StepFence::CheckPlace(const StepKey& key) const {
  if (key.epoch() == place_.epoch && key.generation() == place_.generation && key.incarnation() == place_.incarnation &&
      key.step() == place_.step + 1) {
    return absl::OkStatus();
  }
  return absl::AbortedError(absl::StrCat("refused: ", StepKeyText(key), "; this worker is epoch ", place_.epoch,
                                         " incarnation ", place_.incarnation, " generation ", place_.generation,
                                         " and makes step ", place_.step + 1));
}

absl::Status StepFence::CheckPrepare(const StepKey& key) const {
  if (absl::Status status = CheckPlace(key); !status.ok()) return status;
  const bool same_step_of_request =
      last_ && last_->request_id() == key.request_id() && last_->k() == key.k() && last_->step() == key.step();
  if (same_step_of_request && key.attempt() <= last_->attempt()) {
    return absl::AbortedError(absl::StrCat("refused: Prepare of ", StepKeyText(key), "; attempt ", last_->attempt(),
                                           " of this step was seen already"));
  }
  return absl::OkStatus();
}

void StepFence::OnPrepare(const StepKey& key) {
  last_ = key;
  state_ = State::kPreparing;
}

void StepFence::OnVote(const StepKey& key) {
  CHECK(state_ == State::kPreparing && SameStepKey(*last_, key)) << "vote without its Prepare: " << StepKeyText(key);
  state_ = State::kVoted;
}

absl::Status StepFence::CheckApply(const StepKey& key) const {
  if (absl::Status status = CheckPlace(key); !status.ok()) return status;
  if (state_ != State::kVoted) {
    return absl::AbortedError(absl::StrCat("refused: Apply of ", StepKeyText(key), "; no vote is waiting for one"));
  }
  if (!SameStepKey(*last_, key)) {
    return absl::AbortedError(
        absl::StrCat("refused: Apply of ", StepKeyText(key), "; the vote was for ", StepKeyText(*last_)));
  }
  return absl::OkStatus();
}

void StepFence::OnApplied(const StepKey& key, bool discard) {
  CHECK(state_ == State::kVoted && SameStepKey(*last_, key)) << "applied without its vote: " << StepKeyText(key);
  state_ = State::kIdle;
  if (!discard) ++place_.step;
}

bool StepFence::OnAbort(const StepKey& key) {
  if (state_ == State::kIdle || !SameStepKey(*last_, key)) return false;
  state_ = State::kIdle;
  return true;
}

}  // namespace stemma::worker
