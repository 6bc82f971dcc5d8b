// How long planning takes, over the number of groups: one JSON line for each size, budget and schedule. Sizes are
// drawn, so that no two groups have one shape and nothing is found among what was planned before. Then how long
// placement takes, and how far the fullest rank is over the lower bound: one line for each number of groups and ranks;
// and the same where one more group is as expensive as all others together, and is split.
//
//   planner_bench [--groups 256,1024,4096,16384,62500] [--mini-batch-groups 0] [--cp 1] [--pp 1]
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/mesh.h"
#include "common/cost/state_bytes.h"
#include "glog/logging.h"
#include "nlohmann/json.hpp"
#include "server/planner/group_cost.h"
#include "server/planner/memory_division.h"
#include "server/planner/placement.h"
#include "server/planner/planner.h"
#include "server/planner/split_cost.h"
#include "tests/server/planner/cluster_shapes.h"
#include "tests/server/planner/drawn_clusters.h"
#include "tests/testing/namespaces.h"

namespace stemma::testing {
namespace {

constexpr int kRuns = 3;  // of each plan; medians are printed, with the range
constexpr int64_t kRollouts = 16;
constexpr int64_t kPromptMin = 128, kPromptMax = 2048, kResponseMin = 64, kResponseMax = 2048;
// In parts of the fewest bytes in which the longest rollout can be trained: nearly every cluster gives something up.
constexpr double kTightBudget = 1.5;

PlannerModel Model(bool tight, const MeshSizes& mesh = {}) {
  PlannerModel model;
  model.config = BenchModel();
  model.rates = BenchRates();
  model.run.set_dtype("fp32");
  model.run.set_threads(2);
  model.run.set_head_chunk_tokens(512);
  model.run.set_optimizer_residency(v1::DEVICE);
  *model.run.mutable_mesh() = MakeMesh(mesh);
  if (!tight) {
    model.run.set_memory_budget_bytes(uint64_t{1} << 50);
    return model;
  }
  const MemoryOptions options = MemoryOptionsOf(model.config, model.run, model.rates, /*forward_only=*/false);
  const auto fewest = static_cast<double>(FewestBytes(options, OneGroup(kPromptMax - 1, kResponseMax, 1)));
  const int64_t state = StateBytesOf(model.config, model.run).device(v1::DEVICE);
  model.run.set_memory_budget_bytes(static_cast<uint64_t>(state + static_cast<int64_t>(kTightBudget * fewest)));
  return model;
}

PlannerRequest Request(int64_t groups, int64_t mini_batch_groups, v1::Schedule schedule) {
  PlannerRequest request;
  request.schedule = schedule;
  request.mini_batch_groups = mini_batch_groups;
  std::mt19937_64 random(7);
  for (int64_t g = 0; g < groups; ++g) {
    PlannerGroup group;
    group.uid = absl::StrCat("group-", g);
    group.prompt_tokens = DrawSize(kPromptMin, kPromptMax, random);
    for (int64_t i = 0; i < kRollouts; ++i) {
      group.rollouts.push_back({DrawSize(kResponseMin, kResponseMax, random)});
    }
    request.groups.push_back(std::move(group));
  }
  return request;
}

// Two builds that print the same number made the same plan and the same report of it.
uint64_t Digest(const PlanResult& result) {
  return std::hash<std::string>()(result.plan.SerializeAsString() + result.report.SerializeAsString());
}

void Measure(const PlannerRequest& request, bool tight, const MeshSizes& mesh) {
  const PlannerModel model = Model(tight, mesh);
  absl::StatusOr<PlanResult> plan;
  std::vector<double> seconds;
  for (int run = 0; run < kRuns; ++run) {
    plan = absl::UnknownError("not planned yet");  // freeing the plan before is not counted
    const double begin_s = RealClock().MonotonicSeconds();
    plan = MakePlan(model, request);
    seconds.push_back(RealClock().MonotonicSeconds() - begin_s);
    CHECK(plan.ok()) << plan.status();
  }
  std::sort(seconds.begin(), seconds.end());
  const nlohmann::json line = {{"groups", request.groups.size()},
                               {"rollouts", static_cast<int64_t>(request.groups.size()) * kRollouts},
                               {"mini_batch_groups", request.mini_batch_groups},
                               {"cp", mesh.cp},
                               {"pp", mesh.pp},
                               {"budget", tight ? "tight" : "loose"},
                               {"schedule", request.schedule == v1::AUTO ? "auto" : "reuse"},
                               {"clusters", plan->report.num_clusters()},
                               {"waves", plan->report.num_waves()},
                               {"pipeline_s", plan->report.pipeline_s()},
                               {"plan", absl::StrCat(absl::Hex(Digest(*plan), absl::kZeroPad16))},
                               {"seconds", seconds[kRuns / 2]},
                               {"seconds_least", seconds.front()},
                               {"seconds_most", seconds.back()}};
  std::printf("%s\n", line.dump().c_str());
  std::fflush(stdout);
}

// Groups of lognormal lengths, by the planner's own costs.
std::vector<PlacementGroup> PlacementGroups(int64_t count) {
  const PlannerModel model = Model(/*tight=*/false);
  MemoryChooser chooser(MemoryOptionsOf(model.config, model.run, model.rates, /*forward_only=*/false));
  std::mt19937_64 random(7);
  std::vector<PlacementGroup> groups;
  for (int64_t g = 0; g < count; ++g) {
    PackingGroup group;
    group.prefix_rows = 1 + static_cast<int64_t>(DrawLognormal(512, 1, random));
    for (uint32_t i = 0; i < kRollouts; ++i) {
      group.members.push_back({i, 1 + static_cast<int64_t>(DrawLognormal(400, 1, random))});
    }
    ChooseReuse(chooser, v1::AUTO, /*flops_saved=*/0, group);
    groups.push_back(PlacementGroupOf(chooser, group));
  }
  return groups;
}

void MeasurePlacement(int64_t count, int32_t ranks) {
  const std::vector<PlacementGroup> groups = PlacementGroups(count);
  std::vector<double> seconds;
  Placement placement;
  for (int run = 0; run < 5; ++run) {
    const double begin_s = RealClock().MonotonicSeconds();
    placement = PlaceGroups(groups, ranks);
    seconds.push_back(RealClock().MonotonicSeconds() - begin_s);
  }
  std::sort(seconds.begin(), seconds.end());
  const nlohmann::json line = {{"groups", count},
                               {"ranks", ranks},
                               {"seconds", seconds[seconds.size() / 2]},
                               {"imbalance", placement.imbalance()},
                               {"over_bound", placement.over_bound()}};
  std::printf("%s\n", line.dump().c_str());
  std::fflush(stdout);
}

// What a mini-batch takes to place in which one more group has as many tokens as all others together.
void MeasureSplit(int64_t count, int32_t ranks) {
  const PlannerModel model = Model(/*tight=*/false);
  MemoryChooser chooser(MemoryOptionsOf(model.config, model.run, model.rates, /*forward_only=*/false));
  std::vector<PlacementGroup> groups = PlacementGroups(count);
  double others = 0;
  for (const PlacementGroup& group : groups) others += group.total_s();
  PackingGroup hot;
  hot.prefix_rows = 1024;
  hot.reuse = true;
  hot.members.resize(64, {0, 400});
  hot.members.resize(static_cast<size_t>(64 * others / PlacementGroupOf(chooser, hot).total_s()), {0, 400});
  groups.push_back(PlacementGroupOf(chooser, hot));
  SplitRequest request = {.groups = groups, .ranks = ranks, .mode = v1::SPLIT_AUTO};
  request.may_split.resize(groups.size(), false);
  request.may_split.back() = true;
  request.costs = [&](size_t) { return SplitCostsOf(chooser, hot); };
  const double begin_s = RealClock().MonotonicSeconds();
  const SplitPlacement placement = PlaceAndSplit(request);
  const nlohmann::json line = {{"hot_rollouts", hot.members.size()},
                               {"groups", count},
                               {"of_ranks", ranks},
                               {"seconds", RealClock().MonotonicSeconds() - begin_s},
                               {"whole", placement.imbalance_whole()},
                               {"split", placement.imbalance()}};
  std::printf("%s\n", line.dump().c_str());
  std::fflush(stdout);
}

}  // namespace
}  // namespace stemma::testing

int main(int argc, char** argv) {
  CLI::App app("Seconds of planning and of placement over the number of groups");
  std::vector<int64_t> sizes = {256, 1024, 4096, 16384, 62500};
  app.add_option("--groups", sizes, "numbers of groups, of 16 rollouts each")
      ->delimiter(',')
      ->check(CLI::PositiveNumber);
  int64_t mini_batch_groups = 0;
  app.add_option("--mini-batch-groups", mini_batch_groups, "groups of an optimizer step; 0: all");
  stemma::MeshSizes mesh;
  app.add_option("--cp", mesh.cp, "context-parallel ranks that requests are planned for")->check(CLI::PositiveNumber);
  app.add_option("--pp", mesh.pp, "pipeline stages that requests are planned for")->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  for (const bool tight : {false, true}) {
    for (const stemma::v1::Schedule schedule : {stemma::v1::AUTO, stemma::v1::REUSE}) {
      for (const int64_t groups : sizes) {
        stemma::testing::Measure(stemma::testing::Request(groups, mini_batch_groups, schedule), tight, mesh);
      }
    }
  }
  for (const auto& [groups, ranks] : {std::pair{256, 8}, {1024, 64}, {4096, 64}, {16384, 64}}) {
    stemma::testing::MeasurePlacement(groups, ranks);
  }
  for (const auto& [groups, ranks] : {std::pair{48, 4}, {48, 8}, {1024, 64}, {16384, 64}}) {
    stemma::testing::MeasureSplit(groups, ranks);
  }
  return 0;
}
