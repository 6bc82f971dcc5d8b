// What an observer of a communicator hears of each collective that has ended. Free of LibTorch.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "worker/parallel/collective.h"

namespace stemma::worker {

struct CollectiveRecord {
  CollectiveKind kind;
  std::string_view axis;  // of the communicator; valid during the call, as the name is
  std::string_view name;
  int peer = -1;      // root, receiver or sender: its rank on the axis
  int64_t bytes = 0;  // as CollectiveBytes counts them
  // Seconds of RealClock(): when its start began, when its caller began to wait for its end, when that wait was over.
  double started_s = 0, awaited_s = 0, ended_s = 0;
};

using CollectiveObserver = std::function<void(const CollectiveRecord&)>;

}  // namespace stemma::worker
