// Runs of groups before one is timed, so that what comes once for a shape is not in its seconds. Pure.
//
// A device with plans of attention (worker/backend/cuda/attention/plan_ledger.h) gives a shape its plans after so many
// FLOPs over the prefix: each shape of wave that the group has comes so often by itself that the next has them.
#pragma once

#include <cstdint>
#include <vector>

#include "common/model/model_config.h"
#include "tests/gpu/bench/shapes.h"
#include "tests/testing/namespaces.h"

namespace stemma::testing {

// So many runs of a group of so many rollouts, dense or in waves of so many.
struct WarmUp {
  bool dense = false;
  int64_t wave_suffixes = 1, rollouts = 1, runs = 1;
  bool operator==(const WarmUp&) const = default;
};

// A group that is to be timed, and how.
struct TimedGroup {
  GroupSize size;
  bool dense = false;
  int64_t wave_suffixes = 1;  // where it is not dense
};

// Each shape until it has its plans, then all together, as PlainWarmUps. The last layer of a dense trajectory attends
// to its prompt as a wave of one suffix does, in one layer of many: such waves give it its plans sooner.
std::vector<WarmUp> WarmUpsWithPlans(const ModelConfig& model, const TimedGroup& group);

// All shapes, twice; with reuse the second time in more waves.
std::vector<WarmUp> PlainWarmUps(const TimedGroup& group);

}  // namespace stemma::testing
