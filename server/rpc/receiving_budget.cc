#include "server/rpc/receiving_budget.h"

#include "absl/strings/str_cat.h"
#include "common/base/error.h"

namespace stemma::server {

absl::Status ReceivingBudget::Share::Set(uint64_t bytes) {
  if (bytes > budget_.bytes_max_) {
    return MakeError(Reason::kLimitExceeded, absl::StrCat("the request takes more than the ", budget_.bytes_max_,
                                                          " bytes of limits.receiving_bytes: send smaller ones"));
  }
  MutexLock lock(&budget_.mutex_);
  const uint64_t others = budget_.bytes_ - bytes_;
  if (others + bytes > budget_.bytes_max_) {
    return MakeError(Reason::kQueueFull,
                     absl::StrCat("requests that are being received hold ", others, " bytes, with this one's ", bytes,
                                  " the limit of ", budget_.bytes_max_, " is passed (limits.receiving_bytes)"));
  }
  budget_.bytes_ = others + bytes;
  bytes_ = bytes;
  return absl::OkStatus();
}

void ReceivingBudget::Share::Release() {
  MutexLock lock(&budget_.mutex_);
  budget_.bytes_ -= bytes_;
  bytes_ = 0;
}

}  // namespace stemma::server
