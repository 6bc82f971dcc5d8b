#include "server/planner/prefix_ways.h"

#include "common/cost/memory_choices.h"
#include "common/cost/tape_policy.h"

namespace stemma::server {
namespace {

PrefixWayList WaysOfOneRank(const MemoryOptions& options, int64_t rows) {
  if (rows == 0) return {PrefixWay{}};
  absl::InlinedVector<int64_t, 8> blocks = {options.prefix_block_rows < rows ? options.prefix_block_rows : 0};
  if (options.prefix_block_rows == 0) {
    for (const int64_t block : kPrefixBlockRows) {
      if (block < rows) blocks.push_back(block);
    }
  }
  PrefixWayList ways;
  if (options.forward_only) {
    for (const int64_t block : blocks) ways.push_back({.block_rows = block});
    return ways;
  }
  for (const v1::TapePolicy policy : {v1::S0, v1::S1, v1::S2, v1::S3, v1::S4, v1::S5}) {
    if (options.prefix_policy != v1::TAPE_POLICY_UNSPECIFIED && options.prefix_policy != policy) continue;
    for (const bool offload : {false, true}) {
      if (options.offload == (offload ? v1::OFFLOAD_OFF : v1::OFFLOAD_ON)) continue;
      if (offload && !KeepsInputs(policy)) continue;  // nothing to move
      for (const int64_t block : blocks) ways.push_back({policy, offload, block});
    }
  }
  return ways;
}

}  // namespace

// What context-parallel ranks hold, copies of the model can send each other; what is gathered again they cannot.
PrefixWayList PrefixWays(const MemoryOptions& options, int64_t rows, bool split) {
  PrefixWayList held = WaysOfOneRank(options, rows);
  const bool may_regather = options.shape.cp > 1 && rows > 0 && !split;
  if (!may_regather || options.prefix_kv == v1::PREFIX_KV_HOLD) return held;
  PrefixWayList ways;
  if (options.prefix_kv != v1::PREFIX_KV_REGATHER) ways = held;
  for (const PrefixWay& way : held) {
    ways.push_back(way);
    ways.back().regather = true;
  }
  return ways;
}

}  // namespace stemma::server
