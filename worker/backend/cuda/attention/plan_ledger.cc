#include "worker/backend/cuda/attention/plan_ledger.h"

namespace stemma::worker::cuda {

PlanLedger::Key PlanLedger::KeyOf(const DenseShape& shape) {
  const ShapeFamily& family = shape.family;
  return {family.heads,
          family.kv_heads,
          family.head_size,
          family.causal ? 1 : 0,
          shape.batch,
          BucketOfRows(shape.rows),
          family.causal ? BucketOfRows(shape.keys) : shape.keys};
}

void PlanLedger::Begin(const DenseShape& shape, double flops) {
  Spent& spent = spent_[KeyOf(shape)];
  if (spent.flops >= flops_of_plans_) {
    spent.has_plans = true;
  } else {
    spent.flops += flops;
  }
}

bool PlanLedger::HasPlans(const DenseShape& shape) const {
  const auto found = spent_.find(KeyOf(shape));
  return found != spent_.end() && found->second.has_plans;
}

}  // namespace stemma::worker::cuda
