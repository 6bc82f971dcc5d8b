#include "common/cost/state_bytes.h"

#include <algorithm>

#include "common/base/mesh.h"
#include "common/cost/rank_shape.h"
#include "common/cost/state_shards.h"
#include "common/cost/state_slabs.h"

namespace stemma {

int64_t RunBytes(RunDtype dtype) { return dtype == RunDtype::kFp64 ? 8 : dtype == RunDtype::kBf16 ? 2 : 4; }

int64_t AccumulateBytes(RunDtype dtype) { return dtype == RunDtype::kFp64 ? 8 : 4; }

namespace {

int64_t OptimizerStates(RunDtype dtype) { return RunBytes(dtype) == AccumulateBytes(dtype) ? 2 : 3; }

}  // namespace

int64_t OptimizerBytes(RunDtype dtype) { return OptimizerStates(dtype) * AccumulateBytes(dtype); }

StateBytes StateBytesOf(const ModelConfig& config, RunDtype dtype, const v1::Mesh& mesh) {
  const ModelShard shard = LargestShard(config, mesh);
  const int64_t ranks = DataRanks(mesh);
  const int64_t count = NumParameters(shard), run = RunBytes(dtype), accumulate = AccumulateBytes(dtype);
  const StateShare share = LargestShare(shard, ranks);
  StateBytes bytes;
  bytes.weights = count * run;
  bytes.gradients = count * accumulate;
  bytes.optimizer = share.elements * OptimizerBytes(dtype);
  const StateSlabShape slabs{.elements = share.elements, .states = OptimizerStates(dtype), .element_bytes = accumulate};
  bytes.clipped = ClippedSlabBytes(slabs);
  bytes.slabs = StateSlabBytes(slabs);
  bytes.exchange = ExchangeBytes(share, ranks, accumulate) +
                   (PartialGradientElements(shard) + StageGradientElements(shard)) * accumulate;
  bytes.tables = config.max_positions * config.head_size * accumulate;
  return bytes;
}

StateBytes StateBytesOf(const ModelConfig& config, const v1::RunConfig& run) {
  return StateBytesOf(config, RunDtypeOf(run.dtype()), run.mesh());
}

int64_t HostTapeBytesMax(const ModelConfig& config, const v1::RunConfig& run) {
  const int64_t states = StateBytesOf(config, run).host(run.optimizer_residency());
  return std::max<int64_t>(0, static_cast<int64_t>(run.host_memory_bytes()) - states);
}

}  // namespace stemma
