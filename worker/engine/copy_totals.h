// What the ranks of one copy of the model have exchanged inside of its layers, and of partial gradients; and sharded
// parameters with all copies.
#pragma once

#include "stemma/internal/v1/worker.pb.h"
#include "worker/parallel/collective_stats.h"
#include "worker/parallel/mesh_ranks.h"

namespace stemma::worker {

// This rank's totals since its communicators were made, agreements left out.
struct CopyTotals {
  CollectiveTotals tensor_parallel;  // worker/ops/tensor_parallel.h, and partial gradients
  // worker/model/context_hot_sets.h; the seconds also include waiting for other ranks' waves.
  CollectiveTotals context_parallel;
  CollectiveTotals parameters;  // worker/model/sharded_units.h
  CollectiveTotals pipeline;    // worker/model/stage_links.h, and a tied embedding's gradients
};
CopyTotals ReadCopyTotals(const MeshRanks& ranks);

// Sets what a step has exchanged inside of its copy, between two readings.
void SetExchanged(const CopyTotals& before, const CopyTotals& after, internal::v1::StepSums& sums);

}  // namespace stemma::worker
