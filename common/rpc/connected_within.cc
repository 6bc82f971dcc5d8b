#include "common/rpc/connected_within.h"

#include "common/base/clock.h"
#include "grpc/support/time.h"

namespace stemma {

bool ConnectedWithin(grpc::Channel& channel, double seconds) {
  const double end_s = RealClock().MonotonicSeconds() + seconds;
  for (auto state = channel.GetState(true); state != GRPC_CHANNEL_READY; state = channel.GetState(true)) {
    const double left_s = end_s - RealClock().MonotonicSeconds();
    if (left_s <= 0) return false;
    const gpr_timespec left = gpr_time_from_millis(static_cast<int64_t>(left_s * 1e3), GPR_TIMESPAN);
    if (!channel.WaitForStateChange(state, left)) return false;
  }
  return true;
}

}  // namespace stemma
