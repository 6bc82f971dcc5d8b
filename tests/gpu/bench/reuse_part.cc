// Prefix reuse beside dense: splits of a trajectory and numbers of rollouts, suffixes per wave, another model.
#include <algorithm>
#include <memory>
#include <vector>

#include "common/base/status_macros.h"
#include "tests/gpu/bench/group_rows.h"
#include "tests/gpu/bench/parts.h"
#include "tests/gpu/bench/stack.h"

namespace stemma::testing {
namespace {

// Layers run one after the other and alike: a few of them give a sweep's ratios in minutes instead of hours. The
// ideals are those of as many layers.
constexpr int64_t kSweepLayers = 8;

absl::StatusOr<std::unique_ptr<Stack>> SweepStack(BenchRun& run, ModelConfig model) {
  const int64_t asked = run.options().layers > 0 ? run.options().layers : kSweepLayers;
  run.Fact("layers_of_the_model", model.num_layers);
  model.num_layers = std::min(asked, model.num_layers);
  run.Fact("layers", model.num_layers);
  return Stack::Create(run, {.config = model});
}

GroupSize WithRollouts(GroupSize size, int64_t rollouts) {
  size.rollouts = rollouts;
  return size;
}

// Measures every split with each of so many rollouts.
absl::Status MeasureSweep(BenchRun& run, const std::vector<int64_t>& counts) {
  const bool tiny = run.options().tiny;
  ASSIGN_OR_RETURN(const std::unique_ptr<Stack> stack, SweepStack(run, LlamaConfig(tiny)));
  for (const int64_t rollouts : counts) {
    for (const GroupSize& split : Splits(tiny)) {
      const GroupSize size = WithRollouts(split, rollouts);
      MeasureReuse(run, *stack, size, UsualWave(size));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RunReuse(BenchRun& run) { return MeasureSweep(run, RolloutCounts(run.options().tiny)); }

absl::Status RunReuseLarge(BenchRun& run) { return MeasureSweep(run, LargeRolloutCounts(run.options().tiny)); }

absl::Status RunWaves(BenchRun& run) {
  const bool tiny = run.options().tiny;
  ASSIGN_OR_RETURN(const std::unique_ptr<Stack> stack, SweepStack(run, LlamaConfig(tiny)));
  const GroupSize size = WithRollouts(Splits(tiny)[0], RolloutCounts(tiny)[0]);
  for (const int64_t suffixes : {1, 2, 4, 8}) {
    if (suffixes <= size.rollouts) MeasureReuse(run, *stack, size, suffixes);
  }
  return absl::OkStatus();
}

absl::Status RunQwen(BenchRun& run) {
  const bool tiny = run.options().tiny;
  ASSIGN_OR_RETURN(const std::unique_ptr<Stack> stack, SweepStack(run, QwenConfig(tiny)));
  const GroupSize split = Splits(tiny)[0];
  MeasureDense(run, *stack, WithRollouts(split, 1), "head on the response");
  const GroupSize size = WithRollouts(split, RolloutCounts(tiny)[0]);
  MeasureReuse(run, *stack, size, UsualWave(size));
  return absl::OkStatus();
}

}  // namespace stemma::testing
