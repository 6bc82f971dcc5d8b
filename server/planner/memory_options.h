// How clusters may be computed: the model's shape, what memory there is, and what the run configuration forces.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "common/cost/byte_shape.h"
#include "common/cost/memory_choices.h"
#include "server/planner/cost_model.h"
#include "server/planner/stop_check.h"
#include "stemma/v1/plan.pb.h"
#include "stemma/v1/run_config.pb.h"

namespace stemma::server {

inline constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

inline constexpr int64_t kClusterPrefixRows = 2048;  // beyond, GEMMs of packed prefixes do not get faster

struct MemoryOptions {
  ByteShape shape;                // of all layers
  std::vector<ByteShape> stages;  // of each pipeline stage, where there are several
  // Rounds of waves that are between their forward and their backward on the first stage while a cluster is computed;
  // on each later stage one fewer, but one at least.
  int64_t rounds_in_flight = 1;
  int64_t budget_bytes = 0;     // above weights, gradients and optimizer state (server/planner/memory_division.h)
  int64_t held_bytes = 0;       // of the device, beside every cluster; budget_bytes is without them
  int64_t kept_free_bytes = 0;  // what budget_bytes is without, held_bytes among it
  int64_t overdrawn_bytes = 0;  // by which that is more than the budget; budget_bytes is 0 then
  bool sums_gradients = false;  // of the whole model, to reduce them once; among held_bytes
  int64_t host_bytes = 0;       // of host memory for tapes; 0: not known, not a limit
  int64_t wave_suffixes = 0;    // forced; 0: by the budget
  // Rows worth packing: suffixes join a wave, and groups a cluster by their prefixes, while they have at most so many.
  // Pipeline stages may be better off with fewer (server/planner/stage_packing.h).
  int64_t wave_rows = kWaveRows;
  int64_t cluster_prefix_rows = kClusterPrefixRows;
  v1::WaveLayout layout = v1::PACKED;
  bool forward_only = false;  // no tape, no policies
  Rates rates;
  // Forced; unspecified or 0: chosen.
  v1::TapePolicy prefix_policy = v1::TAPE_POLICY_UNSPECIFIED;
  v1::TapePolicy suffix_policy = v1::TAPE_POLICY_UNSPECIFIED;
  int64_t prefix_block_rows = 0;
  v1::Offload offload = v1::OFFLOAD_UNSPECIFIED;
  v1::PrefixKv prefix_kv = v1::PREFIX_KV_UNSPECIFIED;  // of context-parallel ranks; groups that are split are held

  StopCheck stop;  // asked before each cluster, and before each way of one
  bool stopped() const { return stop && stop(); }
  std::span<const ByteShape> all_stages() const {
    return stages.empty() ? std::span<const ByteShape>(&shape, 1) : std::span<const ByteShape>(stages);
  }
  // Takes these bytes from the budget.
  void KeepFree(int64_t bytes) {
    kept_free_bytes = bytes;
    overdrawn_bytes = std::max<int64_t>(bytes - budget_bytes, 0);
    budget_bytes = std::max<int64_t>(budget_bytes - bytes, 0);
  }
  // Says of every stage whether the loss takes its gradient of whole responses (ByteShape::whole_rollouts).
  void SetWholeRollouts(bool whole) {
    shape.whole_rollouts = whole;
    for (ByteShape& stage : stages) stage.whole_rollouts = whole;
  }
  // Returns the first stage on which an operation costs what it does on this one: stages are of one model, so those
  // with as many layers and the same ends are alike.
  size_t FirstLike(size_t stage) const {
    const std::span<const ByteShape> all = all_stages();
    const auto is_like = [&](const ByteShape& other) {
      return other.config.num_layers == all[stage].config.num_layers && other.first_stage == all[stage].first_stage &&
             other.last_stage == all[stage].last_stage;
    };
    return static_cast<size_t>(std::find_if(all.begin(), all.end(), is_like) - all.begin());
  }
  // Returns one stage of each kind, the first, which has most rounds in flight. The stage that needs most bytes is
  // among them, whatever is asked.
  std::vector<size_t> candidate_stages() const {
    std::vector<size_t> candidates;
    for (size_t s = 0; s < all_stages().size(); ++s) {
      if (FirstLike(s) == s) candidates.push_back(s);
    }
    return candidates;
  }
  int64_t rounds_in_flight_on(size_t stage) const {
    return std::max<int64_t>(rounds_in_flight - static_cast<int64_t>(stage), 1);
  }
  int64_t host_bytes_max() const { return host_bytes > 0 ? host_bytes : kNoLimit; }
};

}  // namespace stemma::server
