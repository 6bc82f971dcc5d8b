// gRPC's deadlines, counted from now: someone who sets the machine's clock moves none of them.
#pragma once

#include "absl/time/time.h"
#include "grpc/support/time.h"

namespace stemma::server {

inline gpr_timespec FromNow(absl::Duration after) {
  return gpr_time_from_nanos(absl::ToInt64Nanoseconds(after), GPR_TIMESPAN);
}

}  // namespace stemma::server
