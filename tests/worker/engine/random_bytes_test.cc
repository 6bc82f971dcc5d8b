// The bytes that a plan predicts for each phase against those that the allocator counts, over random models, requests
// and memory settings. The product's own way: the server's planner makes the plan and its report, the engine runs it.
//
// CI runs fixed seeds. `--gtest_random_seed=N` (1 to 99999) runs others: make soak draws fresh ones. A failure prints
// its seed and configuration.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "common/base/mesh.h"
#include "common/cost/expert_rows.h"
#include "common/cost/rank_shape.h"
#include "common/cost/state_bytes.h"
#include "common/model/model_init.h"
#include "glog/logging.h"
#include "server/planner/memory_division.h"
#include "tests/testing/first_experts.h"
#include "tests/testing/in_process.h"
#include "tests/testing/namespaces.h"
#include "tests/testing/step_sums.h"
#include "tests/testing/synthetic.h"
#include "tests/worker/engine/bytes_cases.h"
#include "tests/worker/engine/product_rows.h"
#include "tests/worker/memory/fake_copy_engine.h"
#include "worker/backend/cpu/cpu_backend.h"
#include "worker/memory/cpu_allocator.h"

namespace stemma::testing {
namespace {

constexpr double kTolerance = 0.03;  // what is promised; of some 20 seeds one phase passed 1 %: 2.6 %, bf16 and dense
constexpr double kSmallestBytes = 1e5;  // below it the rounding of some 70 tensors to 64 bytes may be more
constexpr int kCasesPerSeed = 25;
const std::vector<int> kSeedsInCi = {1, 2};
const std::vector<int> kContextSeedsInCi = {12, 18};  // each has found what 1 and 2 had not

// The budget that leaves so much of what an ample one would use; false: no plan fits it.
bool SetBudget(const Case& c, const TrainingRequest& request, v1::RunConfig& run) {
  const StateBytes state = StateBytesOf(c.model, run);
  const auto kept =
      static_cast<uint64_t>(state.device(run.optimizer_residency()) + state.apply(run.optimizer_residency()));
  run.set_memory_budget_bytes(kept + (uint64_t{2} << 30));
  const PlanFunction plan = MakePlanFunction(c.model);
  const Rates rates = DefaultRates(RunDtypeOf(run.dtype()), run.threads(), "cpu");
  const auto ample = plan(request, run, rates, [] { return false; });
  if (!ample.ok()) return false;
  if (c.budget_of_ample > 0) {
    run.set_memory_budget_bytes(
        kept + static_cast<uint64_t>(c.budget_of_ample * static_cast<double>(ample->report.peak_bytes())));
  }
  return plan(request, run, rates, [] { return false; }).ok();
}

// What libraries and gathering take beside what the plan counts of clusters: the most of any product of the step, which
// is not monotonic in the rows, and a gathering of sharded parameters.
double ScratchOf(const Case& c, const v1::StepPlan& step) {
  const auto gathering = static_cast<double>(StateBytesOf(c.model, c.run).gathering);
  if (c.run.dtype() != "bf16") return gathering;
  return static_cast<double>(ProductScratchOf(c, step)) + gathering;
}

struct PhaseRow {
  const char* name;
  double least = 0, most = 0, measured = 0;
};

std::vector<PhaseRow> RowsOf(const v1::StepReport& report, const internal::v1::Vote& vote) {
  std::vector<PhaseRow> rows = {{"prefix_forward"}, {"suffix"}, {"prefix_backward"}};
  for (const v1::ClusterReport& cluster : report.clusters()) {
    const v1::PhaseBytes* phases[] = {&cluster.prefix_forward(), &cluster.suffix(), &cluster.prefix_backward()};
    for (size_t i = 0; i < rows.size(); ++i) {
      rows[i].least = std::max(rows[i].least, static_cast<double>(phases[i]->peak()));
      rows[i].most = std::max(rows[i].most, static_cast<double>(phases[i]->peak_with_headroom()));
    }
  }
  const std::map<std::string, double> sums = SumsByName(vote.sums());
  // Gradients that a step adds up are there in all of it, beside every cluster.
  const auto held = static_cast<double>(report.gradient_sums_bytes());
  for (PhaseRow& row : rows) {
    const double measured = sums.at(std::string(row.name) + "_bytes");
    row.measured = measured > 0 ? measured - held : 0;
  }
  return rows;
}

struct Tally {
  int run = 0, phases = 0, exact = 0, offloaded = 0, bounded = 0, in_blocks = 0, padded = 0, cut = 0;
  double above = 0, below = 0;  // the farthest from the prediction, library scratch apart
};

// Where no headroom is given, the least is all there is: measured and predicted agree. With headroom, what is measured
// lies between the two; copies that never end by themselves take all of it, so that the upper one is reached where the
// whole tape fits it.
void CheckRows(const std::vector<PhaseRow>& rows, bool all_is_there, double activation_budget, double scratch,
               Tally& tally) {
  for (const PhaseRow& row : rows) {
    if (row.measured - scratch < kSmallestBytes) continue;
    ++tally.phases;
    tally.exact += all_is_there;
    EXPECT_GE(row.measured, all_is_there ? row.least * (1 - kTolerance) : 0)
        << row.name << " is predicted at least " << row.least;
    EXPECT_LE(row.measured - scratch, row.most * (1 + kTolerance)) << row.name << " is predicted at most " << row.most;
    if (all_is_there) tally.below = std::max(tally.below, 1 - row.measured / row.least);
    tally.above = std::max(tally.above, (row.measured - scratch) / row.most - 1);
    EXPECT_LE(row.most, activation_budget) << row.name << " may pass the budget";
  }
}

// Tells whether the rank has as much as is planned for: of a plan for ranks with experts of their own only where all
// rows that may come to the rank do, and are kept.
bool HasAllThatIsPlanned(const Case& c) {
  if (EpSize(c.run.mesh()) == 1) return true;
  const Experts experts = RankShape(c.model, c.run).config.experts.value();
  constexpr int64_t kRows = 1000;
  return c.first_experts && KeptAssignments(experts, kRows) == MostAssignments(experts, kRows);
}

struct LoadedCase {
  std::unique_ptr<InProcess> engine;  // null: no plan fits the budget
  double activation_budget = 0;
};

LoadedCase Load(const Case& c, TrainingRequest request, const std::string& directory, InProcessOptions options) {
  options.run = c.run;
  options.run.set_model(directory);
  options.lone_rank = c.run.mesh().tp() > 1 || c.run.mesh().cp() > 1;
  if (c.first_experts) options.lone_tp_rank = 0;
  // The one rank that is here runs all waves, so that the largest is among them.
  if (c.run.mesh().cp() > 1) {
    options.edit_step = options.edit_entry_pass = [rank = options.lone_cp_rank](v1::StepPlan& step) {
      for (v1::Cluster& cluster : *step.mutable_clusters()) {
        for (v1::Wave& wave : *cluster.mutable_waves()) {
          if (!wave.cut_rows()) wave.set_cp_rank(static_cast<uint32_t>(rank));
        }
        if (cluster.has_sweeps()) cluster.mutable_sweeps()->set_rounds(static_cast<uint32_t>(cluster.waves_size()));
      }
    };
  }
  if (!SetBudget(c, request, options.run)) return {};
  std::filesystem::remove_all(directory);
  CHECK(WriteRandomModel(c.model, {}, directory).ok());
  auto engine =
      InProcess::Create(options, MakeCpuBackend(), c.lazy_copies ? std::make_unique<FakeCopyEngine>() : nullptr);
  CHECK(engine.ok()) << engine.status();
  if (c.first_experts) SendAllRowsToTheFirstExperts((*engine)->weights());
  const absl::Status loaded = (*engine)->Load(std::move(request));
  CHECK(loaded.ok()) << loaded;
  const int64_t state = (*engine)->plan().report.state().device();
  return {std::move(*engine), static_cast<double>(static_cast<int64_t>(options.run.memory_budget_bytes()) - state)};
}

int CutWaves(const v1::StepPlan& step) {
  int cut = 0;
  for (const v1::Cluster& cluster : step.clusters()) {
    for (const v1::Wave& wave : cluster.waves()) cut += wave.cut_rows() ? 1 : 0;
  }
  return cut;
}

bool HasPaddedWave(const v1::StepPlan& step) {
  for (const v1::Cluster& cluster : step.clusters()) {
    for (const v1::Wave& wave : cluster.waves()) {
      if (wave.layout() == v1::PADDED && wave.members_size() > 1) return true;
    }
  }
  return false;
}

// A plan is for the context-parallel rank that takes most: calls run(rank, rows) for one after the other, which adds
// what the rank takes to the rows.
template <typename RunRank>
std::vector<PhaseRow> HighestOfRanks(const Case& c, const RunRank& run) {
  std::vector<PhaseRow> highest;
  for (int rank = 0; rank < static_cast<int>(CpSize(c.run.mesh())); ++rank) {
    std::vector<PhaseRow> rows = run(rank);
    for (size_t i = 0; i < highest.size() && i < rows.size(); ++i) {
      rows[i].measured = std::max(rows[i].measured, highest[i].measured);
    }
    highest = std::move(rows);
  }
  return highest;
}

void RunCase(const Case& c, const std::string& directory, Tally& tally) {
  LoadedCase loaded;
  std::optional<internal::v1::Vote> last;
  const std::vector<PhaseRow> rows = HighestOfRanks(c, [&](int rank) -> std::vector<PhaseRow> {
    InProcessOptions options;
    options.lone_cp_rank = rank;
    loaded = {};
    loaded = Load(c, SyntheticRequest(c.prompts, c.responses, c.model.vocab_size), directory, options);
    if (loaded.engine == nullptr) return {};
    const auto vote = loaded.engine->Prepare(0);
    CHECK(vote.ok() && vote->yes()) << vote.status() << (vote.ok() ? vote->message() : "");
    last = *vote;
    return RowsOf(loaded.engine->plan().report.steps(0), *vote);
  });
  if (loaded.engine == nullptr) return;
  const std::unique_ptr<InProcess>& engine = loaded.engine;
  const internal::v1::Vote* vote = &*last;
  CheckRows(rows, HasAllThatIsPlanned(c), loaded.activation_budget, ScratchOf(c, engine->plan().plan.steps(0)), tally);
  tally.offloaded += vote->sums().host_bytes() > 0;
  tally.bounded += c.budget_of_ample > 0;
  tally.padded += HasPaddedWave(engine->plan().plan.steps(0));
  tally.cut += CutWaves(engine->plan().plan.steps(0));
  ++tally.run;
}

// What the operations of a request's entry pass take: they come before those of its first step.
class EntryPassBytes {
 public:
  void Begin(const v1::StepPlan& pass) {
    for (const v1::Cluster& cluster : pass.clusters()) {
      operations_left_ += cluster.waves_size() + (cluster.prefix_groups().empty() ? 0 : 1);
    }
    start_ = CpuMemoryStats().current_bytes;
  }
  void OperationEnded(const std::string& phase) {
    if (operations_left_ == 0) return;
    --operations_left_;
    double& measured = phase == "suffix" ? suffix : prefix_forward;
    measured = std::max(measured, static_cast<double>(CpuMemoryStats().peak_bytes - start_));
  }

  bool complete() const { return operations_left_ == 0; }

  double prefix_forward = 0, suffix = 0;

 private:
  int64_t start_ = 0, operations_left_ = 0;
};

void RunEntryPass(const Case& c, const std::string& directory, Tally& tally) {
  TrainingRequest request = SyntheticRequest(c.prompts, c.responses, c.model.vocab_size);
  request.update.mutable_old()->set_from(v1::LogProbSource::WEIGHTS);
  request.update.mutable_old()->set_weights("policy");
  LoadedCase loaded;
  std::vector<PhaseRow> rows = HighestOfRanks(c, [&](int rank) -> std::vector<PhaseRow> {
    EntryPassBytes measured;
    InProcessOptions options;
    options.lone_cp_rank = rank;
    options.progress = [&](const internal::v1::Heartbeat& heartbeat) { measured.OperationEnded(heartbeat.phase()); };
    loaded = {};
    loaded = Load(c, request, directory, options);
    if (loaded.engine == nullptr) return {};
    measured.Begin(loaded.engine->plan().plan.log_prob_pass());
    const auto vote = loaded.engine->Prepare(0);
    CHECK(vote.ok() && vote->yes()) << vote.status() << (vote.ok() ? vote->message() : "");
    EXPECT_TRUE(measured.complete());
    return {{"prefix_forward", 0, 0, measured.prefix_forward}, {"suffix", 0, 0, measured.suffix}};
  });
  if (loaded.engine == nullptr) return;
  const std::unique_ptr<InProcess>& engine = loaded.engine;
  const double activation_budget = loaded.activation_budget;
  const v1::StepPlan& pass = engine->plan().plan.log_prob_pass();
  for (const v1::ClusterReport& cluster : engine->plan().report.steps(0).clusters()) {  // the pass's
    rows[0].least = std::max(rows[0].least, static_cast<double>(cluster.prefix_forward().peak()));
    rows[1].least = std::max(rows[1].least, static_cast<double>(cluster.suffix().peak()));
    tally.in_blocks += cluster.prefix_block_rows() > 0;
  }
  for (PhaseRow& row : rows) row.most = row.least;
  CheckRows(rows, HasAllThatIsPlanned(c), activation_budget, ScratchOf(c, pass), tally);
  tally.bounded += c.budget_of_ample > 0;
  tally.padded += HasPaddedWave(pass);
  tally.cut += CutWaves(pass);
  ++tally.run;
}

// CI's seeds, or that of the flag.
std::vector<int> Seeds(const std::vector<int>& in_ci) {
  const int flag = GTEST_FLAG_GET(random_seed);
  return flag > 0 ? std::vector<int>{flag} : in_ci;
}

// What drawn cases must reach: one of so many has a plan.
struct Reach {
  int run_of = 2;
  bool asks_padded = true;
};
// A tight budget refuses more, and rollouts that are cut share no wave.
constexpr Reach kReachOfCut = {.run_of = 3, .asks_padded = false};

template <typename DrawOne, typename RunOne>
Tally RunDrawnCases(const std::string& name, const DrawOne& draw_one, const RunOne& run_one,
                    const std::vector<int>& seeds_in_ci = kSeedsInCi, const Reach& reach = {}) {
  const std::vector<int> seeds = Seeds(seeds_in_ci);
  const std::string directory = ::testing::TempDir() + "/" + name + "-" + std::to_string(seeds.front());
  Tally tally;
  for (const int seed : seeds) {
    Draw draw(static_cast<uint64_t>(seed));
    for (int i = 0; i < kCasesPerSeed; ++i) {
      const Case c = draw_one(draw);
      SCOPED_TRACE("--gtest_random_seed=" + std::to_string(seed) + " case " + std::to_string(i) + ": " + c.text());
      run_one(c, directory, tally);
    }
  }
  std::filesystem::remove_all(directory);
  std::printf(
      "%d cases ran, %d phases held, %d offloaded, %d with a budget, %d with padded waves, %d clusters in blocks, "
      "%d rollouts cut; "
      "%.2f %% above, %.2f %% below at most\n",
      tally.run, tally.phases, tally.offloaded, tally.bounded, tally.padded, tally.in_blocks, tally.cut,
      100 * tally.above, 100 * tally.below);
  const auto cases = static_cast<int>(seeds.size()) * kCasesPerSeed;
  EXPECT_GT(tally.run, cases / reach.run_of) << "too few of the drawn cases have a plan: the test says little";
  EXPECT_GT(tally.phases, cases / reach.run_of);
  if (reach.asks_padded) {
    EXPECT_GT(tally.padded, cases / 30);
  }
  return tally;
}

TEST(RandomBytesTest, EveryPhaseTakesWhatItsPlanSays) {
  const Tally tally = RunDrawnCases("random-bytes", DrawCase, RunCase);
  EXPECT_GT(tally.offloaded, tally.run / 20);
}

TEST(RandomBytesTest, ATensorParallelRankTakesWhatItsPlanSays) {
  const Tally tally = RunDrawnCases("random-rank-bytes", DrawRankCase, RunCase);
  EXPECT_GT(tally.offloaded, tally.run / 20);
}

TEST(RandomBytesTest, AForwardOnlyPassOfATensorParallelRankTakesWhatItsPlanSays) {
  RunDrawnCases("random-rank-forward-bytes", DrawRankCase, RunEntryPass);
}

// Its plan is for all rows that may choose its experts.
TEST(RandomBytesTest, ARankOfExpertsTakesNoMoreThanItsPlanSays) {
  const Tally tally = RunDrawnCases("random-expert-bytes", DrawExpertRankCase, RunCase);
  EXPECT_GT(tally.exact, tally.phases / 10);
  EXPECT_LT(tally.exact, tally.phases);
}

TEST(RandomBytesTest, AForwardOnlyPassOfARankOfExpertsTakesNoMoreThanItsPlanSays) {
  RunDrawnCases("random-expert-forward-bytes", DrawExpertRankCase, RunEntryPass);
}

TEST(RandomBytesTest, AContextParallelRankTakesWhatItsPlanSays) {
  const Tally tally = RunDrawnCases("random-context-bytes", DrawContextCase, RunCase, kContextSeedsInCi);
  EXPECT_GT(tally.offloaded, tally.run / 20);
}

TEST(RandomBytesTest, AForwardOnlyPassOfAContextParallelRankTakesWhatItsPlanSays) {
  RunDrawnCases("random-context-forward-bytes", DrawContextCase, RunEntryPass);
}

TEST(RandomBytesTest, ARankOfRolloutsThatAreCutTakesWhatItsPlanSays) {
  const Tally tally = RunDrawnCases("random-cut-bytes", DrawCutCase, RunCase, kSeedsInCi, kReachOfCut);
  EXPECT_GT(tally.cut, tally.run / 2);
}

TEST(RandomBytesTest, AForwardOnlyPassOfRolloutsThatAreCutTakesWhatItsPlanSays) {
  const Tally tally = RunDrawnCases("random-cut-forward-bytes", DrawCutCase, RunEntryPass, kSeedsInCi, kReachOfCut);
  EXPECT_GT(tally.cut, tally.run / 3);
}

// Nothing is kept for a backward; what Phase A makes and frees is predicted, at once and in blocks, of which two make
// the first one's buffers the highest moment.
TEST(RandomBytesTest, AForwardOnlyPassTakesWhatItsPlanSays) {
  const auto draw_in_blocks = [](Draw& draw) {
    Case c = DrawCase(draw);
    const int64_t rows = *std::max_element(c.prompts.begin(), c.prompts.end());
    if (draw.Chance(50) && rows > 32) c.run.set_prefix_block_rows(static_cast<uint32_t>(draw.Between(rows / 4, rows)));
    return c;
  };
  const Tally tally = RunDrawnCases("random-forward-bytes", draw_in_blocks, RunEntryPass);
  EXPECT_GT(tally.in_blocks, tally.run / 30);
}

}  // namespace
}  // namespace stemma::testing
