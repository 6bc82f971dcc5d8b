#include "worker/schedule/last_operations.h"

namespace stemma::worker {

LastOperations::LastOperations(std::span<const Operation> program) {
  for (const Operation& operation : program) {
    last_[operation.cluster] = &operation;
    const bool forward = operation.kind == OperationKind::kPrefixForward ||
                         operation.kind == OperationKind::kWaveForward ||
                         (operation.kind == OperationKind::kJoinForward && JoinsCopy(operation));
    if (forward) last_forward_[operation.cluster] = &operation;
  }
}

}  // namespace stemma::worker
