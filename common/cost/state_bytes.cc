#include "common/cost/state_bytes.h"

#include <algorithm>

#include "common/cost/state_slabs.h"

namespace stemma {

int64_t RunBytes(std::string_view dtype) { return dtype == "fp64" ? 8 : dtype == "bf16" ? 2 : 4; }

int64_t AccumulateBytes(std::string_view dtype) { return dtype == "fp64" ? 8 : 4; }

namespace {

int64_t OptimizerStates(std::string_view dtype) { return RunBytes(dtype) == AccumulateBytes(dtype) ? 2 : 3; }

}  // namespace

int64_t OptimizerBytes(std::string_view dtype) { return OptimizerStates(dtype) * AccumulateBytes(dtype); }

StateBytes StateBytesOf(const ModelConfig& config, std::string_view dtype) {
  const int64_t count = config.num_parameters(), run = RunBytes(dtype), accumulate = AccumulateBytes(dtype);
  StateBytes bytes;
  bytes.weights = count * run;
  bytes.gradients = count * accumulate;
  bytes.optimizer = count * OptimizerBytes(dtype);
  const StateSlabShape slabs{.elements = count, .states = OptimizerStates(dtype), .element_bytes = accumulate};
  bytes.clipped = ClippedSlabBytes(slabs);
  bytes.slabs = StateSlabBytes(slabs);
  bytes.tables = config.max_positions * config.head_size * accumulate;
  return bytes;
}

int64_t HostTapeBytesMax(const ModelConfig& config, const v1::RunConfig& run) {
  const int64_t states = StateBytesOf(config, run.dtype()).host(run.optimizer_residency());
  return std::max<int64_t>(0, static_cast<int64_t>(run.host_memory_bytes()) - states);
}

}  // namespace stemma
