#include "worker/parallel/collective.h"

#include <glog/logging.h>

namespace stemma::worker {

std::string_view KindName(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kAllReduceSum:
      return "all-reduce";
    case CollectiveKind::kReduceScatterSum:
      return "reduce-scatter";
    case CollectiveKind::kAllGather:
      return "all-gather";
    case CollectiveKind::kBroadcast:
      return "broadcast";
    case CollectiveKind::kSend:
      return "send";
    case CollectiveKind::kReceive:
      return "receive";
    case CollectiveKind::kAgree:
      return "agreement";
  }
  LOG(FATAL) << "no such kind of collective: " << static_cast<int>(kind);
}

int64_t CollectiveBytes(CollectiveKind kind, int64_t whole_bytes, int size) {
  CHECK_GE(whole_bytes, 0);
  CHECK_GE(size, 1);
  if (size == 1) return 0;
  switch (kind) {
    case CollectiveKind::kAllReduceSum:
    case CollectiveKind::kAgree:
      return 2 * whole_bytes * (size - 1) / size;
    case CollectiveKind::kReduceScatterSum:
    case CollectiveKind::kAllGather:
      return whole_bytes * (size - 1) / size;
    case CollectiveKind::kBroadcast:
    case CollectiveKind::kSend:
    case CollectiveKind::kReceive:
      return whole_bytes;
  }
  LOG(FATAL) << "no such kind of collective: " << static_cast<int>(kind);
}

}  // namespace stemma::worker
