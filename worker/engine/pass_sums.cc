#include "worker/engine/pass_sums.h"

namespace stemma::worker {

void PassSums::AddPhase(OperationKind kind, double seconds, int64_t peak_bytes) {
  switch (kind) {
    case OperationKind::kPrefixForward:
      prefix_forward_s += seconds;
      prefix_forward_bytes = std::max(prefix_forward_bytes, peak_bytes);
      break;
    case OperationKind::kPrefixBackward:
      prefix_backward_s += seconds;
      prefix_backward_bytes = std::max(prefix_backward_bytes, peak_bytes);
      break;
    case OperationKind::kSend:
    case OperationKind::kReceive:
      split_s += seconds;
      suffix_bytes = std::max(suffix_bytes, peak_bytes);
      break;
    default:
      suffix_s += seconds;
      suffix_bytes = std::max(suffix_bytes, peak_bytes);
      break;
  }
}

void PassSums::AddOffload(const ResidencyStats& stats) {
  offload.bytes_out += stats.bytes_out;
  offload.bytes_in += stats.bytes_in;
  offload.demand_loads += stats.demand_loads;
  offload.waits += stats.waits;
  offload.kept += stats.kept;
  offload.peak_host_bytes = std::max(offload.peak_host_bytes, stats.peak_host_bytes);
}

}  // namespace stemma::worker
