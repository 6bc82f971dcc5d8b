#include "worker/schedule/operation.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace stemma::worker {

bool IsExchange(OperationKind kind) {
  return kind == OperationKind::kSend || kind == OperationKind::kReceive || kind == OperationKind::kGather ||
         kind == OperationKind::kReduce;
}
bool IsJoin(OperationKind kind) {
  return kind == OperationKind::kJoinForward || kind == OperationKind::kJoinBackward ||
         kind == OperationKind::kJoinPrefixForward || kind == OperationKind::kJoinPrefixBackward;
}
bool IsNumbered(OperationKind kind) {
  return kind == OperationKind::kWaveForward || kind == OperationKind::kWaveBackward || IsJoin(kind) ||
         kind == OperationKind::kIdle;
}

const char* KindText(OperationKind kind) {
  switch (kind) {
    case OperationKind::kPrefixForward:
      return "PrefixForward";
    case OperationKind::kWaveForward:
      return "WaveForward";
    case OperationKind::kWaveBackward:
      return "WaveBackward";
    case OperationKind::kPrefixBackward:
      return "PrefixBackward";
    case OperationKind::kJoinForward:
      return "JoinForward";
    case OperationKind::kJoinBackward:
      return "JoinBackward";
    case OperationKind::kJoinPrefixForward:
      return "JoinPrefixForward";
    case OperationKind::kJoinPrefixBackward:
      return "JoinPrefixBackward";
    case OperationKind::kIdle:
      return "Idle";
    case OperationKind::kSend:
      return "Send";
    case OperationKind::kReceive:
      return "Receive";
    case OperationKind::kGather:
      return "Gather";
    case OperationKind::kReduce:
      return "Reduce";
  }
  return "unknown";
}

std::string OperationText(const Operation& operation) {
  if (IsExchange(operation.kind)) {
    return absl::StrCat(KindText(operation.kind), "(\"", operation.exchange.tensor, "\", ", operation.exchange.bytes,
                        " bytes, ranks ", absl::StrJoin(operation.exchange.ranks, " "), ")");
  }
  return absl::StrCat(KindText(operation.kind), "(cluster ", operation.cluster,
                      IsNumbered(operation.kind) ? absl::StrCat(", wave ", operation.wave) : "", ")");
}

}  // namespace stemma::worker
