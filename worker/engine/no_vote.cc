#include "worker/engine/no_vote.h"

#include <glog/logging.h>

#include <string>

#include "common/base/error.h"

namespace stemma::worker {
namespace {

internal::v1::NoVoteReason ReasonOf(const absl::Status& status) {
  if (HasReason(status, Reason::kCorruptCheckpoint)) return internal::v1::DAMAGED_CHECKPOINT;
  switch (status.code()) {
    case absl::StatusCode::kCancelled:
      return internal::v1::CANCELLED;
    case absl::StatusCode::kResourceExhausted:
      return internal::v1::OUT_OF_MEMORY;
    case absl::StatusCode::kAborted:
      return internal::v1::PEER;
    default:
      return internal::v1::INTERNAL;
  }
}

}  // namespace

internal::v1::Vote NoVote(const absl::Status& why) {
  CHECK(!why.ok());
  internal::v1::Vote vote;
  vote.set_no_reason(ReasonOf(why));
  vote.set_message(std::string(why.message()));
  return vote;
}

}  // namespace stemma::worker
