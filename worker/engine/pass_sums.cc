#include "worker/engine/pass_sums.h"

namespace stemma::worker {

const char* PhaseName(OperationKind kind) {
  switch (kind) {
    case OperationKind::kPrefixForward:
      return "prefix_forward";
    case OperationKind::kPrefixBackward:
      return "prefix_backward";
    default:
      return "suffix";
  }
}

void PassSums::AddTokens(const std::vector<MemberRows>& rows, const std::vector<GroupShape>& groups) {
  for (const MemberRows& m : rows) {
    const GroupShape& group = groups[m.group];
    tokens_computed += m.end - m.begin;
    if (m.suffix_begin == 0) tokens_logical += group.prompt_tokens - 1 + group.response_tokens[m.rollout];
  }
}

void PassSums::AddSeconds(OperationKind kind, double seconds) {
  switch (kind) {
    case OperationKind::kPrefixForward:
      prefix_forward_s += seconds;
      break;
    case OperationKind::kPrefixBackward:
      prefix_backward_s += seconds;
      break;
    case OperationKind::kSend:
    case OperationKind::kReceive:
      split_s += seconds;
      break;
    default:
      suffix_s += seconds;
      break;
  }
}

void PassSums::AddPeak(OperationKind kind, int64_t peak_bytes) {
  int64_t& bytes = kind == OperationKind::kPrefixForward    ? prefix_forward_bytes
                   : kind == OperationKind::kPrefixBackward ? prefix_backward_bytes
                                                            : suffix_bytes;
  bytes = std::max(bytes, peak_bytes);
}

void PassSums::AddOffload(const ResidencyStats& stats) {
  offload.bytes_out += stats.bytes_out;
  offload.bytes_in += stats.bytes_in;
  offload.demand_loads += stats.demand_loads;
  offload.waits += stats.waits;
  offload.kept += stats.kept;
  offload.kept_bytes += stats.kept_bytes;
  offload.peak_host_bytes = std::max(offload.peak_host_bytes, stats.peak_host_bytes);
}

}  // namespace stemma::worker
