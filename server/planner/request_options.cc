#include "server/planner/request_options.h"

#include <algorithm>

#include "common/cost/state_bytes.h"
#include "server/planner/memory_division.h"
#include "server/planner/sharded_step.h"
#include "server/planner/stage_plan.h"

namespace stemma::server {

MemoryOptions RequestOptions(const PlannerModel& model, const PlannerRequest& request, bool forward_only,
                             bool sums_gradients) {
  MemoryOptions options = MemoryOptionsOf(model.config, model.run, model.rates, forward_only);
  options.SetWholeRollouts(request.whole_rollouts);
  const bool staged = !options.stages.empty(), sharded = ShardsParameters(model.run);
  options.sums_gradients = sums_gradients && !forward_only;
  if (sharded) {
    options.wave_rows = std::max(options.wave_rows, RowsWorthGathering(model, options.sums_gradients));
    options.cluster_prefix_rows = options.wave_rows;
  }
  if (forward_only) options.held_bytes = CheckpointBytes(model, request);
  if (request.beside_gradients) options.held_bytes += KeptGradientBytes(model.config, model.run);
  if (sharded) options.held_bytes += StateBytesOf(model.config, model.run).gathering;
  if (options.sums_gradients) options.held_bytes += StateBytesOf(model.config, model.run).gradient_sums;
  if (staged && !forward_only) options.rounds_in_flight = static_cast<int64_t>(options.stages.size());
  // What is in flight of it, orders say when they are known.
  const int64_t in_flight = staged ? RowsInFlightBytes(options, request) : 0;
  if (staged || forward_only || sharded || request.beside_gradients) {
    options.KeepFree(options.held_bytes + in_flight);
  }
  return options;
}

int64_t CheckpointBytes(const PlannerModel& model, const PlannerRequest& request) {
  return request.reads_checkpoint ? StateBytesOf(model.config, model.run).weights : 0;
}

}  // namespace stemma::server
