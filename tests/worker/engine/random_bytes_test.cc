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
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "common/cost/rank_shape.h"
#include "common/cost/state_bytes.h"
#include "common/model/model_init.h"
#include "glog/logging.h"
#include "server/planner/memory_division.h"
#include "tests/testing/draw.h"
#include "tests/testing/in_process.h"
#include "tests/testing/namespaces.h"
#include "tests/testing/step_sums.h"
#include "tests/testing/synthetic.h"
#include "tests/worker/engine/product_scratch.h"
#include "tests/worker/memory/fake_copy_engine.h"
#include "worker/backend/cpu/cpu_backend.h"
#include "worker/memory/cpu_allocator.h"

namespace stemma::testing {
namespace {

constexpr double kTolerance = 0.03;  // what is promised; of some 20 seeds one phase passed 1 %: 2.6 %, bf16 and dense
constexpr double kSmallestBytes = 1e5;  // below it the rounding of some 70 tensors to 64 bytes may be more
constexpr int kCasesPerSeed = 25;
constexpr int kSeedsInCi = 2;

struct Case {
  ModelConfig model;
  v1::RunConfig run;
  std::vector<int64_t> prompts, responses;
  double budget_of_ample = 0;  // of what the plan without a limit needs; 0: no limit
  bool lazy_copies = false;    // copies end only where they are waited for

  std::string text() const {
    std::ostringstream out;
    out << model.model_type << (model.tie_word_embeddings ? " tied" : "") << " D " << model.hidden_size << " L "
        << model.num_layers << " H " << model.num_heads << " K " << model.num_kv_heads << " E " << model.head_size
        << " F " << model.ffn_size << " V " << model.vocab_size << " budget of ample " << budget_of_ample
        << (lazy_copies ? " lazy copies" : "") << " prompts";
    for (const int64_t prompt : prompts) out << " " << prompt;
    out << " responses";
    for (const int64_t response : responses) out << " " << response;
    out << "\n" << run.ShortDebugString();
    return out.str();
  }
};

ModelConfig DrawModel(Draw& draw) {
  const int64_t kv_heads = draw.Of<int64_t>({1, 2, 4});
  ModelConfig model = SyntheticModel({.hidden = 8 * draw.Between(4, 24),
                                      .layers = draw.Between(1, 5),
                                      .heads = kv_heads * draw.Of<int64_t>({1, 2, 3}),
                                      .kv_heads = kv_heads,
                                      .head_size = draw.Of<int64_t>({16, 32, 64}),
                                      .ffn = 8 * draw.Between(4, 60),
                                      .vocab = draw.LogBetween(60, 12000)});
  model.SetFamily(draw.Of<Family>({Families().begin(), Families().end()}));
  if (model.num_heads > 4) model.head_size = 16;
  if (model.model_type != "qwen3") model.hidden_size = model.num_heads * model.head_size;
  model.tie_word_embeddings = draw.Chance(50);
  return model;
}

Case DrawCase(Draw& draw) {
  Case c;
  c.model = DrawModel(draw);
  c.run.set_dtype(draw.Of<std::string>({"fp32", "bf16", "bf16", "fp64"}));
  c.run.set_threads(static_cast<uint32_t>(draw.Between(1, 2)));
  c.run.set_schedule(draw.Of<v1::Schedule>({v1::AUTO, v1::REUSE, v1::REUSE, v1::DENSE}));
  c.run.set_head_chunk_tokens(static_cast<uint32_t>(draw.LogBetween(16, 512)));
  c.run.set_wave_suffixes(static_cast<uint32_t>(draw.Chance(50) ? 0 : draw.Between(1, 4)));
  if (draw.Chance(60))
    c.run.set_prefix_policy(draw.Of<v1::TapePolicy>({v1::S0, v1::S1, v1::S2, v1::S3, v1::S4, v1::S5}));
  if (draw.Chance(60)) c.run.set_suffix_policy(draw.Of<v1::TapePolicy>({v1::S0, v1::S1, v1::S2, v1::S3, v1::S4}));
  if (draw.Chance(30)) c.run.set_prefix_block_rows(static_cast<uint32_t>(draw.LogBetween(32, 400)));
  if (draw.Chance(60) && c.run.prefix_policy() != v1::S5) {
    c.run.set_offload(draw.Of<v1::Offload>({v1::OFFLOAD_ON, v1::OFFLOAD_ON, v1::OFFLOAD_OFF}));
  }
  c.run.set_host_memory_bytes(uint64_t{512} << 20);
  c.run.set_optimizer_residency(draw.Of<v1::OptimizerResidency>({v1::DEVICE, v1::HOST}));
  for (int64_t i = draw.Between(1, 3); i > 0; --i) c.prompts.push_back(draw.LogBetween(1, 900));
  for (int64_t i = draw.Between(1, 4); i > 0; --i) c.responses.push_back(draw.LogBetween(1, 250));
  if (draw.Chance(60)) c.budget_of_ample = static_cast<double>(draw.Between(20, 160)) / 100;
  c.lazy_copies = draw.Chance(50);
  if (c.run.wave_suffixes() <= 1 && draw.Chance(10)) {
    c.run.set_layout(v1::ONE_BY_ONE);
  } else if (draw.Chance(50)) {
    c.run.set_layout(v1::PADDED);
  }
  return c;
}

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

// How many rows the products of a step have: those of each wave, and of the prefixes, at once or in blocks.
std::set<int64_t> ProductRows(const Case& c, const v1::StepPlan& step) {
  std::set<int64_t> counts;
  for (const v1::Cluster& cluster : step.clusters()) {
    int64_t prefix_rows = 0;
    for (const uint32_t group : cluster.prefix_groups()) prefix_rows += c.prompts[group] - 1;
    const int64_t block = cluster.prefix_block_rows();
    counts.insert(prefix_rows);
    if (block > 0) counts.insert({std::min(block, prefix_rows), prefix_rows % block});
    for (const v1::Wave& wave : cluster.waves()) {
      int64_t rows = 0;
      for (const v1::WaveMember& member : wave.members()) {
        rows += c.responses[member.rollout()] + (cluster.prefix_groups().empty() ? c.prompts[member.group()] - 1 : 0);
      }
      counts.insert(rows);
    }
  }
  counts.erase(0);
  return counts;
}

// The most of any product of the step; it is not monotonic in the rows.
double ProductScratchOf(const Case& c, const v1::StepPlan& step) {
  if (c.run.dtype() != "bf16") return 0;
  int64_t most = 0;
  for (const int64_t rows : ProductRows(c, step))
    most = std::max(most, ProductScratch(RankShape(c.model, c.run).config, rows));
  return static_cast<double>(most);
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
  for (PhaseRow& row : rows) row.measured = sums.at(std::string(row.name) + "_bytes");
  return rows;
}

struct Tally {
  int run = 0, phases = 0, offloaded = 0, bounded = 0, in_blocks = 0, padded = 0;
  double above = 0, below = 0;  // the farthest from the prediction, library scratch apart
};

// Where no headroom is given, the least is all there is: measured and predicted agree. With headroom, what is measured
// lies between the two; copies that never end by themselves take all of it, so that the upper one is reached where the
// whole tape fits it.
void CheckRows(const std::vector<PhaseRow>& rows, double activation_budget, double scratch, Tally& tally) {
  for (const PhaseRow& row : rows) {
    if (row.measured < kSmallestBytes) continue;
    ++tally.phases;
    EXPECT_GE(row.measured, row.least * (1 - kTolerance)) << row.name << " is predicted at least " << row.least;
    EXPECT_LE(row.measured - scratch, row.most * (1 + kTolerance)) << row.name << " is predicted at most " << row.most;
    tally.below = std::max(tally.below, 1 - row.measured / row.least);
    tally.above = std::max(tally.above, (row.measured - scratch) / row.most - 1);
    EXPECT_LE(row.most, activation_budget) << row.name << " may pass the budget";
  }
}

struct LoadedCase {
  std::unique_ptr<InProcess> engine;  // null: no plan fits the budget
  double activation_budget = 0;
};

LoadedCase Load(const Case& c, TrainingRequest request, const std::string& directory, InProcessOptions options) {
  options.run = c.run;
  options.run.set_model(directory);
  options.lone_rank = c.run.mesh().tp() > 1;
  if (!SetBudget(c, request, options.run)) return {};
  std::filesystem::remove_all(directory);
  CHECK(WriteRandomModel(c.model, {}, directory).ok());
  auto engine =
      InProcess::Create(options, MakeCpuBackend(), c.lazy_copies ? std::make_unique<FakeCopyEngine>() : nullptr);
  CHECK(engine.ok()) << engine.status();
  const absl::Status loaded = (*engine)->Load(std::move(request));
  CHECK(loaded.ok()) << loaded;
  const int64_t state = (*engine)->plan().report.state().device();
  return {std::move(*engine), static_cast<double>(static_cast<int64_t>(options.run.memory_budget_bytes()) - state)};
}

bool HasPaddedWave(const v1::StepPlan& step) {
  for (const v1::Cluster& cluster : step.clusters()) {
    for (const v1::Wave& wave : cluster.waves()) {
      if (wave.layout() == v1::PADDED && wave.members_size() > 1) return true;
    }
  }
  return false;
}

void RunCase(const Case& c, const std::string& directory, Tally& tally) {
  const auto [engine, activation_budget] =
      Load(c, SyntheticRequest(c.prompts, c.responses, c.model.vocab_size), directory, {});
  if (engine == nullptr) return;
  const auto vote = engine->Prepare(0);
  ASSERT_TRUE(vote.ok() && vote->yes()) << vote.status() << (vote.ok() ? vote->message() : "");
  CheckRows(RowsOf(engine->plan().report.steps(0), *vote), activation_budget,
            ProductScratchOf(c, engine->plan().plan.steps(0)), tally);
  tally.offloaded += vote->sums().host_bytes() > 0;
  tally.bounded += c.budget_of_ample > 0;
  tally.padded += HasPaddedWave(engine->plan().plan.steps(0));
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
  EntryPassBytes measured;
  InProcessOptions options;
  options.progress = [&](const internal::v1::Heartbeat& heartbeat) { measured.OperationEnded(heartbeat.phase()); };
  const auto [engine, activation_budget] = Load(c, std::move(request), directory, options);
  if (engine == nullptr) return;
  const v1::StepPlan& pass = engine->plan().plan.log_prob_pass();
  measured.Begin(pass);
  const auto vote = engine->Prepare(0);
  ASSERT_TRUE(vote.ok() && vote->yes()) << vote.status() << (vote.ok() ? vote->message() : "");
  EXPECT_TRUE(measured.complete());
  std::vector<PhaseRow> rows = {{"prefix_forward"}, {"suffix"}};
  for (const v1::ClusterReport& cluster : engine->plan().report.steps(0).clusters()) {  // the pass's
    rows[0].least = std::max(rows[0].least, static_cast<double>(cluster.prefix_forward().peak()));
    rows[1].least = std::max(rows[1].least, static_cast<double>(cluster.suffix().peak()));
    tally.in_blocks += cluster.prefix_block_rows() > 0;
  }
  rows[0].measured = measured.prefix_forward;
  rows[1].measured = measured.suffix;
  for (PhaseRow& row : rows) row.most = row.least;
  CheckRows(rows, activation_budget, ProductScratchOf(c, pass), tally);
  tally.bounded += c.budget_of_ample > 0;
  tally.padded += HasPaddedWave(pass);
  ++tally.run;
}

// CI's seeds, or that of the flag.
std::vector<int> Seeds() {
  const int flag = GTEST_FLAG_GET(random_seed);
  if (flag > 0) return {flag};
  std::vector<int> seeds(kSeedsInCi);
  std::iota(seeds.begin(), seeds.end(), 1);
  return seeds;
}

template <typename DrawOne, typename RunOne>
Tally RunDrawnCases(const std::string& name, const DrawOne& draw_one, const RunOne& run_one) {
  const std::string directory = ::testing::TempDir() + "/" + name + "-" + std::to_string(Seeds().front());
  Tally tally;
  for (const int seed : Seeds()) {
    Draw draw(static_cast<uint64_t>(seed));
    for (int i = 0; i < kCasesPerSeed; ++i) {
      const Case c = draw_one(draw);
      SCOPED_TRACE("--gtest_random_seed=" + std::to_string(seed) + " case " + std::to_string(i) + ": " + c.text());
      run_one(c, directory, tally);
    }
  }
  std::filesystem::remove_all(directory);
  std::printf(
      "%d cases ran, %d phases held, %d offloaded, %d with a budget, %d with padded waves, %d clusters in blocks; "
      "%.2f %% above, %.2f %% below at most\n",
      tally.run, tally.phases, tally.offloaded, tally.bounded, tally.padded, tally.in_blocks, 100 * tally.above,
      100 * tally.below);
  const auto cases = static_cast<int>(Seeds().size()) * kCasesPerSeed;
  EXPECT_GT(tally.run, cases / 2) << "too few of the drawn cases have a plan: the test says little";
  EXPECT_GT(tally.phases, cases / 2);
  EXPECT_GT(tally.padded, cases / 30);
  return tally;
}

TEST(RandomBytesTest, EveryPhaseTakesWhatItsPlanSays) {
  const Tally tally = RunDrawnCases("random-bytes", DrawCase, RunCase);
  EXPECT_GT(tally.offloaded, tally.run / 20);
}

// Makes the case one of a tensor-parallel rank: sizes that ranks can share, K/V heads that several of them hold.
Case DrawRankCase(Draw& draw) {
  Case c = DrawCase(draw);
  const int64_t tp = draw.Between(2, 4);
  c.run.mutable_mesh()->set_tp(static_cast<uint32_t>(tp));
  ModelConfig& m = c.model;
  m.num_kv_heads = tp == 4 ? draw.Of<int64_t>({1, 2, 4, 8}) : draw.Of<int64_t>({1, tp, 2 * tp});
  m.num_heads = std::lcm(m.num_kv_heads, tp) * draw.Of<int64_t>({1, 2});
  m.ffn_size = tp * 8 * draw.Between(2, 24);
  if (m.num_heads > 4) m.head_size = 16;
  if (m.model_type != "qwen3") m.hidden_size = m.num_heads * m.head_size;
  return c;
}

TEST(RandomBytesTest, ATensorParallelRankTakesWhatItsPlanSays) {
  const Tally tally = RunDrawnCases("random-rank-bytes", DrawRankCase, RunCase);
  EXPECT_GT(tally.offloaded, tally.run / 20);
}

TEST(RandomBytesTest, AForwardOnlyPassOfATensorParallelRankTakesWhatItsPlanSays) {
  RunDrawnCases("random-rank-forward-bytes", DrawRankCase, RunEntryPass);
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
