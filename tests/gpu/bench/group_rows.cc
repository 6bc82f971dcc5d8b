#include "tests/gpu/bench/group_rows.h"

#include <algorithm>
#include <utility>

#include "common/base/status_macros.h"
#include "tests/gpu/bench/ideals.h"
#include "tests/gpu/bench/warm_ups.h"

namespace stemma::testing {
namespace {

using nlohmann::json;

// Runs every shape that the group's attention has until what comes once for it has come.
absl::Status WarmUpGroup(Stack& stack, const GroupSize& size, const GroupWay& way) {
  const TimedGroup group = {size, way.dense, way.wave_suffixes};
  for (const WarmUp& warm_up : stack.is_on_host() ? PlainWarmUps(group) : WarmUpsWithPlans(stack.config(), group)) {
    GroupWay of_shape = way;
    of_shape.dense = warm_up.dense;
    of_shape.wave_suffixes = warm_up.wave_suffixes;
    // Beside a dense group reuse takes less memory than the group itself.
    if (way.dense && !warm_up.dense) of_shape.prefix = of_shape.suffix = v1::S4;
    for (int64_t i = 0; i < warm_up.runs; ++i) {
      RETURN_IF_ERROR(stack.Run({size.prompt, size.response, warm_up.rollouts}, of_shape).status());
    }
  }
  return absl::OkStatus();
}

json Numbers(const Spread& spread, double flops) {
  return {{"seconds", spread.Json()}, {"flops", flops}, {"tflops", flops / spread.median() / 1e12}};
}

}  // namespace

int64_t UsualWave(const GroupSize& size) {
  return std::clamp<int64_t>((size.prompt + size.response) / size.response, 1, size.rollouts);
}

absl::StatusOr<Spread> TimeGroup(Stack& stack, const GroupSize& size, const GroupWay& way, GroupRun* last) {
  RETURN_IF_ERROR(WarmUpGroup(stack, size, way));
  Spread spread;
  double all_s = 0;
  for (int i = 0; i < kRuns && all_s < kLongRunSeconds; ++i) {
    ASSIGN_OR_RETURN(GroupRun run, stack.Run(size, way));
    spread.seconds.push_back(run.seconds);
    all_s += run.seconds;
    if (last != nullptr) *last = std::move(run);
  }
  return spread;
}

absl::Status Profile(const BenchRun& run, Stack& stack, const GroupSize& size, const GroupWay& way, int64_t waves) {
  if (!run.options().profile) return absl::OkStatus();
  const ProfiledRange range;
  return stack.Run({size.prompt, size.response, std::min(size.rollouts, waves * way.wave_suffixes)}, way).status();
}

void MeasureDense(BenchRun& run, Stack& stack, const GroupSize& size, const std::string& what) {
  run.Row("dense", {{"what", what}, {"size", size.Text()}, {"layers", stack.config().num_layers}},
          [&](json& row) -> absl::Status {
            GroupRun last;
            ASSIGN_OR_RETURN(const Spread spread, TimeGroup(stack, size, {.dense = true}, &last));
            RETURN_IF_ERROR(Profile(run, stack, size, {.dense = true}, 1));
            const double flops = PrunedFlops(stack.config(), size).dense;
            const auto tokens = static_cast<double>((size.prompt + size.response) * size.rollouts);
            row.update(Numbers(spread, flops));
            row["mfu"] = flops / spread.median() / kPeakFlops;
            row["tokens_per_s"] = tokens / spread.median();
            row["wall_seconds"] = last.wall_seconds;
            row["peak_bytes"] = last.vote.sums().peak_bytes();
            row["state_bytes"] = last.vote.sums().state_bytes();
            return absl::OkStatus();
          });
}

void MeasureReuse(BenchRun& run, Stack& stack, const GroupSize& size, int64_t wave_suffixes) {
  const json what = {{"prompt", size.prompt},
                     {"response", size.response},
                     {"rollouts", size.rollouts},
                     {"wave_suffixes", wave_suffixes},
                     {"layers", stack.config().num_layers}};
  run.Row("reuse", what, [&](json& row) -> absl::Status {
    const GroupWay dense_way = {.dense = true}, reuse_way = {.wave_suffixes = wave_suffixes};
    RETURN_IF_ERROR(WarmUpGroup(stack, size, dense_way));
    RETURN_IF_ERROR(WarmUpGroup(stack, size, reuse_way));
    Spread dense, reuse;
    GroupRun last;
    double dense_s = 0;
    for (int i = 0; i < kRuns && dense_s < kLongRunSeconds; ++i) {
      ASSIGN_OR_RETURN(const GroupRun whole, stack.Run(size, dense_way));
      dense.seconds.push_back(whole.seconds);
      dense_s += whole.seconds;
      ASSIGN_OR_RETURN(last, stack.Run(size, reuse_way));
      reuse.seconds.push_back(last.seconds);
    }
    RETURN_IF_ERROR(Profile(run, stack, size, reuse_way, 1));
    const GroupFlops pruned = PrunedFlops(stack.config(), size), plain = PlainFlops(stack.config(), size);
    const double ratio = dense.median() / reuse.median();
    row["dense"] = Numbers(dense, pruned.dense);
    row["reuse"] = Numbers(reuse, pruned.reuse);
    row["ratio"] = ratio;
    row["ideal"] = pruned.ratio();
    row["ideal_7a"] = plain.ratio();
    row["of_ideal"] = ratio / pruned.ratio();
    const internal::v1::StepSums& sums = last.vote.sums();
    row["phases"] = {sums.prefix_forward_s(), sums.suffix_s(), sums.prefix_backward_s()};
    return absl::OkStatus();
  });
}

}  // namespace stemma::testing
