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

bool OtherAxesMayBeginIn(const Operation& last, const v1::StepPlan& plan, int cp_ranks) {
  if (cp_ranks == 1) return true;
  // Another rank may have waves of later clusters, and then has this cluster's Phase C in the middle.
  if (last.cluster != plan.clusters_size() - 1) return false;
  if (last.kind != OperationKind::kWaveBackward || last.exchange.ranks.empty()) return true;
  // Waves that all run together are a cluster's first. The last of all is everybody's last operation.
  return last.wave == plan.clusters(last.cluster).waves_size() - 1;
}

}  // namespace stemma::worker
