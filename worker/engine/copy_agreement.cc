#include "worker/engine/copy_agreement.h"

#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace stemma::worker {

absl::Status AgreeInCopy(Communicator& tp, std::string_view point, const absl::Status& own) {
  if (tp.size() == 1 || absl::IsUnavailable(own)) return own;
  int64_t cannot = own.ok() ? 0 : 1;
  RETURN_IF_ERROR(tp.Agree(point, {&cannot, 1}));
  if (!own.ok() || cannot == 0) return own;
  return absl::AbortedError("another rank that holds this copy of the model could not go on");
}

absl::Status InsideCopy(const Communicator& tp, const absl::Status& status) {
  const bool alone = absl::IsResourceExhausted(status) || absl::IsInternal(status);
  if (tp.size() == 1 || !alone) return status;
  return absl::UnavailableError(
      absl::StrCat("rank ", tp.rank(), " of ", tp.size(), " of axis ", tp.axis(),
                   " failed where the others of its copy wait for it: ", std::string(status.message())));
}

absl::Status CancelPoll::Poll(int cluster) {
  const bool begins = std::exchange(cluster_, cluster) != cluster;
  const bool several = tp_ != nullptr && tp_->size() > 1;
  if (several && !begins) return absl::OkStatus();
  const absl::Status own = hooks_.cancelled() ? absl::CancelledError("cancelled between waves") : absl::OkStatus();
  return several ? AgreeInCopy(*tp_, "cluster", own) : own;
}

}  // namespace stemma::worker
