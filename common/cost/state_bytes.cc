#include "common/cost/state_bytes.h"

#include <algorithm>

#include "common/base/mesh.h"
#include "common/cost/parameter_units.h"
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

namespace {

// What APPLY streams, of so many elements that a rank owns.
void SetSlabs(int64_t elements, RunDtype dtype, StateBytes& bytes) {
  const bool has_masters = OptimizerStates(dtype) == 3;
  StateSlabShape slabs{.elements = elements,
                       .states = OptimizerStates(dtype),
                       .element_bytes = AccumulateBytes(dtype),
                       .slab_elements = StateSlabElements(has_masters)};
  bytes.clipped_streamed = ClippedSlabBytes(slabs);
  bytes.slabs = StateSlabBytes(slabs);
  if (has_masters) slabs.slab_elements = kGpuSlabElements;
  bytes.clipped_on_device = ClippedSlabBytes(slabs);
}

int64_t PartialBytes(const ModelShard& shard, RunDtype dtype) {
  return (PartialGradientElements(shard) + StageGradientElements(shard)) * AccumulateBytes(dtype);
}

StateBytes WholeBytes(const ModelShard& shard, RunDtype dtype, int64_t ranks) {
  const int64_t count = NumParameters(shard);
  const StateShare share = LargestShare(shard, ranks);
  StateBytes bytes;
  bytes.weights = count * RunBytes(dtype);
  bytes.gradients = count * AccumulateBytes(dtype);
  bytes.optimizer = share.elements * OptimizerBytes(dtype);
  bytes.exchange = ExchangeBytes(share, ranks, AccumulateBytes(dtype)) + PartialBytes(shard, dtype);
  SetSlabs(share.elements, dtype, bytes);
  return bytes;
}

// A rank holds its parts, and the slots into which units are gathered; a reduction takes as much as the largest unit
// beside.
StateBytes ShardedBytes(const ModelShard& shard, RunDtype dtype, int64_t ranks) {
  const ParameterUnits units = ParameterUnitsOf(shard, ranks);
  StateBytes bytes;
  bytes.weights = (units.part() + units.all_slots_elements()) * RunBytes(dtype);
  bytes.gradients = (units.part() + units.all_slots_elements()) * AccumulateBytes(dtype);
  bytes.optimizer = units.part() * OptimizerBytes(dtype);
  bytes.exchange = ranks * units.largest_part() * AccumulateBytes(dtype) + PartialBytes(shard, dtype);
  bytes.gathering = ranks * units.largest_part() * RunBytes(dtype);
  bytes.gradient_sums = units.all() * AccumulateBytes(dtype);
  SetSlabs(units.part(), dtype, bytes);
  return bytes;
}

}  // namespace

StateBytes StateBytesOf(const ModelConfig& config, RunDtype dtype, const v1::Mesh& mesh, bool sharded) {
  const int64_t ranks = DataRanks(mesh);
  StateBytes bytes;
  if (sharded) {
    for (const ModelShard& shard : StageShards(config, mesh)) {
      const StateBytes of_stage = ShardedBytes(shard, dtype, ranks);
      const int64_t gradient_sums = std::max(bytes.gradient_sums, of_stage.gradient_sums);
      if (of_stage.total() > bytes.total()) bytes = of_stage;
      bytes.gradient_sums = gradient_sums;
    }
  } else {
    bytes = WholeBytes(LargestShard(config, mesh), dtype, ranks);
  }
  bytes.tables = config.max_positions * config.head_size * AccumulateBytes(dtype);
  return bytes;
}

StateBytes StateBytesOf(const ModelConfig& config, const v1::RunConfig& run) {
  return StateBytesOf(config, RunDtypeOf(run.dtype()), run.mesh(), ShardsParameters(run));
}

bool ShardsParameters(const v1::RunConfig& run) {
  return run.shard_parameters() == v1::SHARD_PARAMETERS_ON && DataRanks(run.mesh()) > 1;
}

int64_t KeptGradientBytes(const ModelConfig& config, const v1::RunConfig& run) {
  const RunDtype dtype = RunDtypeOf(run.dtype());
  return StateBytesOf(config, run).optimizer / OptimizerBytes(dtype) * AccumulateBytes(dtype);
}

int64_t HostTapeBytesMax(const ModelConfig& config, const v1::RunConfig& run) {
  const int64_t states = StateBytesOf(config, run).host(run.optimizer_residency());
  return std::max<int64_t>(0, static_cast<int64_t>(run.host_memory_bytes()) - states);
}

}  // namespace stemma
