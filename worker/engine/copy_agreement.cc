#include "worker/engine/copy_agreement.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace stemma::worker {

absl::Status AgreeInCopy(const CopyRanks& copy, std::string_view point, const absl::Status& own) {
  if (copy.alone() || absl::IsUnavailable(own)) return own;
  int64_t cannot = own.ok() ? 0 : 1;
  RETURN_IF_ERROR(copy.Agree(point, {&cannot, 1}));
  if (!own.ok() || cannot == 0) return own;
  return absl::AbortedError(copy.shards == nullptr ? "another rank that holds this copy of the model could not go on"
                                                   : "another rank of the mesh could not go on");
}

absl::Status InsideCopy(const CopyRanks& copy, const absl::Status& status) {
  const bool alone = absl::IsResourceExhausted(status) || absl::IsInternal(status);
  if (copy.alone() || !alone) return status;
  const Communicator& axis = copy.shards != nullptr ? *copy.shards
                             : copy.tp_size() > 1   ? *copy.tp
                             : copy.cp_size() > 1   ? *copy.cp
                                                    : *copy.pp;
  return absl::UnavailableError(absl::StrCat("rank ", axis.rank(), " of ", axis.size(), " of axis ", axis.axis(),
                                             " failed where others wait for it: ", std::string(status.message())));
}

absl::Status EndChecks(const CopyRanks& copy, bool agrees, const absl::Status& own) {
  return agrees ? AgreeInCopy(copy, "plan", own) : InsideCopy(copy, own);
}

absl::Status CancelPoll::Own() const {
  return hooks_.cancelled() ? absl::CancelledError("cancelled between waves") : absl::OkStatus();
}

absl::Status CancelPoll::Poll(int cluster) {
  if (copy_.alone()) return Own();
  for (; cluster_ < cluster; ++cluster_) RETURN_IF_ERROR(PollOne());
  return absl::OkStatus();
}

absl::Status CancelPoll::PollOne() const {
  absl::Status status;
  if (stages_.is_first()) {
    status = AgreeInCopy(copy_.stage(), "cluster", Own());
  } else if (stages_.ReceiveWord() != 0) {
    status = Own().ok() ? absl::AbortedError("the stage before this one is cancelled") : Own();
  }
  if (!stages_.is_last() && !absl::IsUnavailable(status)) stages_.SendWord(status.ok() ? 0 : 1);
  return status;
}

}  // namespace stemma::worker
