// What prefix reuse could gain at most by exact FLOPs, and the FLOPs that rates are counted by. Pure.
#pragma once

#include "common/model/model_config.h"
#include "tests/gpu/bench/shapes.h"
#include "tests/testing/namespaces.h"

namespace stemma::testing {

struct GroupFlops {
  double dense = 0, reuse = 0;
  double ratio() const { return dense / reuse; }
};

// Both schedules pruned alike, as both are run here: the last response token is not run, and the last layer computes
// only K and V of rows before the last prompt token.
GroupFlops PrunedFlops(const ModelConfig& config, const GroupSize& size);

// Nothing pruned: the ideal that the paper's tables are compared with.
GroupFlops PlainFlops(const ModelConfig& config, const GroupSize& size);

// Dense bf16 products of H100 and H200 SXM, by which their MFU is counted.
inline constexpr double kPeakFlops = 989e12;

}  // namespace stemma::testing
