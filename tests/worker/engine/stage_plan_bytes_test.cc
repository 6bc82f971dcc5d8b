// The bytes that a plan predicts for each stage of a pipeline, with what is in flight on it, against those that the
// allocator counts: drawn models, meshes, requests and memory settings, by the server's planner and on the engine. One
// stage runs at a time, so that the process's bytes are its own.
//
// CI runs fixed seeds, `--gtest_random_seed=N` others.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <string>

#include "common/cost/pipeline_cost.h"
#include "common/cost/rank_shape.h"
#include "common/cost/state_bytes.h"
#include "common/model/model_init.h"
#include "glog/logging.h"
#include "tests/testing/in_process.h"
#include "tests/testing/namespaces.h"
#include "tests/testing/synthetic.h"
#include "tests/worker/engine/bytes_cases.h"
#include "tests/worker/engine/product_rows.h"
#include "worker/backend/cpu/cpu_backend.h"

namespace stemma::testing {
namespace {

constexpr double kTooLittle = 0.03;  // what is promised
// What a plan may say too much: beside its highest moment it counts the two largest messages of a stage, but Phase C is
// at its highest in its first block, before it has sent any, and the last block's message may be shorter. Messages are
// rows as wide as the model, so a layer's tape is several times as large; of these small models' 543 stages of seeds 1
// to 8 six are planned more than 3 % too high by that, by 7 % at most.
constexpr double kTooMuch = 0.1;
constexpr double kSmallestStageBytes = 1e5;  // below it the rounding of some 70 tensors to 64 bytes may be more
constexpr int kCases = 30;

Case DrawStageCase(Draw& draw) {
  Case c = DrawCase(draw);
  c.model.num_layers = draw.Between(2, 6);
  c.run.mutable_mesh()->set_pp(static_cast<uint32_t>(draw.Between(2, std::min<int64_t>(3, c.model.num_layers))));
  for (int64_t i = draw.Between(0, 4); i > 0; --i) c.prompts.push_back(draw.LogBetween(1, 900));  // several clusters
  // The first of two copies is measured: it owns some of the groups that they share, and helps with others.
  c.run.mutable_mesh()->set_dp(draw.Chance(40) ? 2 : 1);
  c.run.set_split_groups(v1::SPLIT_ON);
  return c;
}

// The budget that leaves so much of what an ample one would use; false: no plan fits it.
bool SetStageBudget(const Case& c, v1::RunConfig& run) {
  const StateBytes state = StateBytesOf(c.model, run);
  const int64_t kept = state.device(run.optimizer_residency()) + state.apply(run.optimizer_residency());
  const TrainingRequest request = SyntheticRequest(c.prompts, c.responses, c.model.vocab_size);
  const auto plan = [&](int64_t activations) {
    run.set_memory_budget_bytes(static_cast<uint64_t>(kept + activations));
    return MakePlanFunction(c.model)(request, run, DefaultRates(RunDtypeOf(run.dtype()), run.threads(), "cpu"),
                                     [] { return false; });
  };
  const auto ample = plan(int64_t{2} << 30);
  if (!ample.ok()) return false;
  if (c.budget_of_ample == 0) return true;
  const double part = c.budget_of_ample * static_cast<double>(ample->report.peak_bytes());
  return plan(static_cast<int64_t>(part)).ok();
}

struct StageTally {
  int stages = 0, in_flight = 0, owned = 0, borrowed = 0;  // groups that copies share
  double above = 0, below = 0;                             // the farthest from the prediction, library scratch apart
};

// Runs each stage by itself; what it is given of the others is zeros.
void RunStages(const Case& c, const std::string& directory, StageTally& tally) {
  InProcessOptions options;
  options.run = c.run;
  options.run.set_model(directory);
  options.lone_rank = true;
  if (!SetStageBudget(c, options.run)) return;
  std::filesystem::remove_all(directory);
  ASSERT_TRUE(WriteRandomModel(c.model, {}, directory).ok());
  for (uint32_t stage = 0; stage < c.run.mesh().pp(); ++stage) {
    options.lone_pp_rank = static_cast<int>(stage);
    const auto engine = InProcess::Create(options, MakeCpuBackend());
    ASSERT_TRUE(engine.ok()) << engine.status();
    ASSERT_TRUE((*engine)->Load(SyntheticRequest(c.prompts, c.responses, c.model.vocab_size)).ok());
    const auto vote = (*engine)->Prepare(0);
    ASSERT_TRUE(vote.ok() && vote->yes()) << vote.status() << (vote.ok() ? vote->message() : "");
    const int64_t scratch = c.run.dtype() == "bf16" ? ProductScratchOf(c, (*engine)->plan().plan.steps(0)) : 0;
    const v1::StepReport& report = (*engine)->plan().report.steps(0);
    ASSERT_EQ(report.ranks_size(), static_cast<int>(c.run.mesh().dp()));
    for (const v1::Cluster& cluster : (*engine)->plan().plan.steps(0).clusters()) {
      if (cluster.dp_rank() != 0) continue;
      tally.owned += cluster.helper_ranks_size() > 0;
      tally.borrowed += cluster.has_owner_rank();
    }
    ASSERT_EQ(report.ranks(0).stages_size(), static_cast<int>(c.run.mesh().pp()));
    const auto planned = static_cast<double>(report.ranks(0).stages(static_cast<int>(stage)).peak_bytes());
    const auto measured = static_cast<double>(vote->sums().peak_bytes());
    EXPECT_LE(measured - static_cast<double>(scratch), planned * (1 + kTooLittle)) << "stage " << stage;
    if (planned > kSmallestStageBytes) {
      EXPECT_GE(measured, planned * (1 - kTooMuch)) << "stage " << stage;
      tally.below = std::max(tally.below, 1 - measured / planned);
    }
    tally.above = std::max(tally.above, (measured - static_cast<double>(scratch)) / planned - 1);
    ++tally.stages;
    const std::string& order = (*engine)->plan().plan.steps(0).copies(0).orders(static_cast<int>(stage));
    tally.in_flight += order.find("FF") != std::string::npos;
  }
}

TEST(StagePlanBytesTest, NoStageTakesMoreThanItsPlanSays) {
  const int flag = GTEST_FLAG_GET(random_seed);
  const uint64_t seed = flag > 0 ? static_cast<uint64_t>(flag) : 1;
  const std::string directory = ::testing::TempDir() + "/stage-plan-bytes-" + std::to_string(seed);
  Draw draw(seed);
  StageTally tally;
  for (int i = 0; i < kCases; ++i) {
    const Case c = DrawStageCase(draw);
    SCOPED_TRACE("--gtest_random_seed=" + std::to_string(seed) + " case " + std::to_string(i) + ": " + c.text());
    RunStages(c, directory, tally);
  }
  std::filesystem::remove_all(directory);
  std::printf("%d stages ran, %d with several waves in flight; %.2f %% above, %.2f %% below at most\n", tally.stages,
              tally.in_flight, 100 * tally.above, 100 * tally.below);
  EXPECT_GT(tally.stages, kCases) << "too few of the drawn cases have a plan: the test says little";
  EXPECT_GT(tally.in_flight, kCases / 3);
  EXPECT_GT(tally.owned, 3);
  EXPECT_GT(tally.borrowed, 3);
}

}  // namespace
}  // namespace stemma::testing
