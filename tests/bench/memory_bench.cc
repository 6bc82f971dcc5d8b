// Memory against time on this machine: tape policies, offload, blocks, capacity under one budget, and the planner's
// choices beside the best of what was measured. Prints the tables of docs/memory.md (tests/bench/bench.py puts them
// there).
//
//   memory_bench --model DIR [--threads 2] [--rounds 4]
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/cost.h"
#include "glog/logging.h"
#include "tests/bench/apply_table.h"
#include "tests/testing/in_process.h"
#include "tests/testing/synthetic.h"

namespace stemma::testing {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kHeadChunkRows = 512;

// How a cluster is computed.
struct Memory {
  std::string name;
  v1::TapePolicy prefix = v1::S0, suffix = v1::S0;
  int64_t block_rows = 0;
  bool offload = false;
  int64_t headroom_bytes = 0;
  bool dense = false;
};

struct Shape {
  int64_t prompt = 0, response = 0, rollouts = 0;
};

struct Measured {
  std::vector<double> seconds;
  worker::v1::Vote vote;
  double median() const {
    std::vector<double> sorted = seconds;
    std::nth_element(sorted.begin(), sorted.begin() + static_cast<int64_t>(sorted.size() / 2), sorted.end());
    return sorted[sorted.size() / 2];
  }
};

double MiB(double bytes) { return bytes / static_cast<double>(kMiB); }
double MiB(int64_t bytes) { return MiB(static_cast<double>(bytes)); }

class Bench {
 public:
  Bench(const std::string& model, uint32_t threads) : threads_(threads) {
    options_.run.set_model(model);
    options_.run.set_dtype("fp32");
    options_.run.set_threads(threads);
    options_.run.set_head_chunk_tokens(kHeadChunkRows);
    options_.run.set_host_memory_bytes(static_cast<uint64_t>(4096 * kMiB));
  }

  // One update's forward and backward as `memory` says, one suffix a wave.
  Measured Run(const Shape& shape, const Memory& memory, int rounds = 1) {
    InProcess& engine = Forced();
    current_ = memory;
    Measured measured;
    for (int i = 0; i < rounds; ++i) measured.seconds.push_back(Once(engine, shape, memory.dense, &measured.vote));
    return measured;
  }

  // As the planner chooses under a budget. Empty seconds: it refuses the group.
  Measured RunPlanned(const Shape& shape, int64_t budget_bytes, int rounds, v1::ClusterReport* report) {
    InProcessOptions options = options_;
    options.run.set_memory_budget_bytes(static_cast<uint64_t>(budget_bytes));
    auto engine = InProcess::Create(options, std::make_unique<CpuAttention>());
    CHECK(engine.ok()) << engine.status();
    Measured measured;
    for (int i = 0; i < rounds; ++i) {
      const absl::Status loaded = (*engine)->Load(Request(shape, false));
      if (!loaded.ok()) return measured;
      measured.seconds.push_back(Prepare(**engine, &measured.vote));
    }
    *report = (*engine)->plan().report.steps(0).clusters(0);
    return measured;
  }

  ByteShape Bytes() {
    return {.config = Forced().weights().config, .head_chunk_rows = kHeadChunkRows, .threads = threads_};
  }

 private:
  // An engine whose plans say `current_`.
  InProcess& Forced() {
    if (forced_ != nullptr) return *forced_;
    InProcessOptions options = options_;
    options.run.set_memory_budget_bytes(static_cast<uint64_t>(65536 * kMiB));
    options.run.set_wave_suffixes(1);
    options.edit_step = [this](v1::StepPlan& step) {
      for (v1::Cluster& cluster : *step.mutable_clusters()) {
        cluster.set_prefix_policy(current_.prefix);
        cluster.set_suffix_policy(current_.suffix);
        cluster.set_prefix_block_rows(static_cast<uint32_t>(current_.block_rows));
        cluster.set_offload_prefix(current_.offload);
        cluster.set_offload_headroom_bytes(static_cast<uint64_t>(current_.headroom_bytes));
      }
    };
    auto engine = InProcess::Create(options, std::make_unique<CpuAttention>());
    CHECK(engine.ok()) << engine.status();
    forced_ = std::move(engine).value();
    return *forced_;
  }

  TrainingRequest Request(const Shape& shape, bool dense) {
    const int64_t vocab = Forced().weights().config.vocab_size;
    TrainingRequest request = SyntheticRequest(
        {shape.prompt}, std::vector<int64_t>(static_cast<size_t>(shape.rollouts), shape.response), vocab);
    request.update.mutable_request()->set_schedule(dense ? v1::DENSE : v1::REUSE);
    return request;
  }

  double Once(InProcess& engine, const Shape& shape, bool dense, worker::v1::Vote* vote) {
    const absl::Status loaded = engine.Load(Request(shape, dense));
    CHECK(loaded.ok()) << loaded;
    return Prepare(engine, vote);
  }

  static double Prepare(InProcess& engine, worker::v1::Vote* vote) {
    const double start_s = RealClock().MonotonicSeconds();
    const auto result = engine.Prepare(0);
    const double seconds = RealClock().MonotonicSeconds() - start_s;
    CHECK(result.ok() && result->yes()) << result.status() << result->message();
    *vote = *result;
    return seconds;
  }

  const uint32_t threads_;
  InProcessOptions options_;
  std::unique_ptr<InProcess> forced_;
  Memory current_;
};

PrefixShape PrefixOf(const Shape& shape, const Memory& memory) {
  if (memory.dense) return {};
  return {.rows = shape.prompt - 1,
          .block_rows = memory.block_rows,
          .policy = memory.prefix,
          .offload = memory.offload,
          .headroom_bytes = memory.headroom_bytes};
}

WaveShape WaveOf(const Shape& shape, const Memory& memory) {
  if (memory.dense) {
    return {.rows = shape.prompt - 1 + shape.response, .kv_only_rows = shape.prompt - 1, .policy = memory.suffix};
  }
  return {.rows = shape.response, .ancestor_rows = shape.prompt - 1, .policy = memory.suffix};
}

int64_t PlannedPeak(const ByteShape& bytes, const Shape& shape, const Memory& memory) {
  const PrefixShape prefix = PrefixOf(shape, memory);
  int64_t peak = SuffixBytes(bytes, prefix, WaveOf(shape, memory)).peak();
  if (memory.dense) return peak;
  return std::max({peak, PrefixForwardBytes(bytes, prefix).peak(), PrefixBackwardBytes(bytes, prefix).peak()});
}

// FLOPs over those of keep-all.
double FlopsFactor(const ModelConfig& config, const Shape& shape, const Memory& memory) {
  const double n = static_cast<double>(shape.rollouts);
  const double base =
      PrefixFlops(config, shape.prompt - 1).total() + n * SuffixFlops(config, shape.prompt - 1, shape.response).total();
  const double again = PrefixRecomputeFlops(config, PrefixOf(shape, memory)).total() +
                       n * SuffixRecomputeFlops(config, shape.prompt - 1, shape.response, memory.suffix).total();
  return 1 + again / base;
}

std::vector<Memory> Policies() {
  std::vector<Memory> all = {{"S0, S0"}};
  for (const v1::TapePolicy policy : {v1::S1, v1::S2, v1::S3, v1::S4}) {
    all.push_back({v1::TapePolicy_Name(policy) + ", " + v1::TapePolicy_Name(policy), policy, policy});
  }
  for (const v1::TapePolicy policy : {v1::S0, v1::S1, v1::S2, v1::S4}) {
    all.push_back(
        {v1::TapePolicy_Name(policy) + " offloaded, " + v1::TapePolicy_Name(policy), policy, policy, 0, true});
  }
  all.push_back({"S0 offloaded with headroom for all, S0", v1::S0, v1::S0, 0, true, 4096 * kMiB});
  all.push_back({"S5 in blocks of 512, S4", v1::S5, v1::S4, 512});
  return all;
}

struct PolicyRow {
  Memory memory;
  Measured measured;
};

// All policies in turns, each round in the other order.
std::vector<PolicyRow> MeasurePolicies(Bench& bench, const Shape& shape, int rounds) {
  std::vector<PolicyRow> rows;
  for (const Memory& memory : Policies()) {
    rows.push_back({memory, {}});
    bench.Run(shape, memory);  // warm
  }
  for (int round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < rows.size(); ++i) {
      PolicyRow& row = rows[round % 2 == 0 ? i : rows.size() - 1 - i];
      const Measured one = bench.Run(shape, row.memory);
      row.measured.seconds.push_back(one.seconds[0]);
      row.measured.vote = one.vote;
    }
  }
  return rows;
}

double MedianRatio(const Measured& a, const Measured& b) {
  Measured ratios;
  for (size_t i = 0; i < a.seconds.size(); ++i) ratios.seconds.push_back(a.seconds[i] / b.seconds[i]);
  return ratios.median();
}

void PrintPolicies(Bench& bench, const Shape& shape, const std::vector<PolicyRow>& rows) {
  const ByteShape bytes = bench.Bytes();
  std::printf("\n### Policies, bytes and seconds: %ld/%ld/%ld, one suffix a wave\n\n", shape.prompt, shape.response,
              shape.rollouts);
  std::printf(
      "| prefix, suffix | s (range) | of keep-all | FLOPs of keep-all | A MiB measured (planned) | B | C | host |\n");
  std::printf("|---|---:|---:|---:|---:|---:|---:|---:|\n");
  for (const PolicyRow& row : rows) {
    const auto [low, high] = std::minmax_element(row.measured.seconds.begin(), row.measured.seconds.end());
    const auto& sums = row.measured.vote.sums();
    const PrefixShape prefix = PrefixOf(shape, row.memory);
    std::printf("| %s | %.2f (%.2f–%.2f) | %.3f | %.3f | %.1f (%.1f) | %.1f (%.1f) | %.1f (%.1f) | %.1f |\n",
                row.memory.name.c_str(), row.measured.median(), *low, *high,
                MedianRatio(row.measured, rows[0].measured), FlopsFactor(bytes.config, shape, row.memory),
                MiB(sums.at("bytes/prefix_forward")), MiB(PrefixForwardBytes(bytes, prefix).peak()),
                MiB(sums.at("bytes/suffix")), MiB(SuffixBytes(bytes, prefix, WaveOf(shape, row.memory)).peak()),
                MiB(sums.at("bytes/prefix_backward")), MiB(PrefixBackwardBytes(bytes, prefix).peak()),
                MiB(sums.at("bytes/host")));
  }
}

void PrintOffload(const std::vector<PolicyRow>& rows) {
  std::printf("\n### Offload, by phase\n\n");
  std::printf("| prefix, suffix | A s | B s | C s | MiB out | MiB in | loads on demand | waits for a prefetch |\n");
  std::printf("|---|---:|---:|---:|---:|---:|---:|---:|\n");
  for (const PolicyRow& row : rows) {
    if (!row.memory.offload && row.memory.name != "S0, S0") continue;
    const auto& sums = row.measured.vote.sums();
    std::printf("| %s | %.2f | %.2f | %.2f | %.1f | %.1f | %.0f | %.0f |\n", row.memory.name.c_str(),
                sums.at("time/prefix_forward_s"), sums.at("time/suffix_s"), sums.at("time/prefix_backward_s"),
                MiB(sums.at("offload/bytes_out")), MiB(sums.at("offload/bytes_in")), sums.at("offload/demand_loads"),
                sums.at("offload/waits"));
  }
}

// The largest phase B of keep-all and with the dormant set away, over N and over P.
void PrintFlatness(Bench& bench) {
  const Memory keep{"keep-all"}, away{"S2 offloaded", v1::S2, v1::S2, 0, true},
      blocks{"S5 blocks", v1::S5, v1::S4, 512};
  std::printf("\n### Phase B's peak over N and P (measured MiB, response 200)\n\n");
  std::printf("| P | N | keep-all | S2 offloaded | S5 in blocks of 512 | of which K/V and their gradients |\n");
  std::printf("|---:|---:|---:|---:|---:|---:|\n");
  const ByteShape bytes = bench.Bytes();
  for (const Shape& shape : {Shape{1000, 200, 2}, Shape{1000, 200, 8}, Shape{2000, 200, 2}, Shape{3800, 200, 2}}) {
    std::printf("| %ld | %ld |", shape.prompt, shape.rollouts);
    for (const Memory& memory : {keep, away, blocks}) {
      std::printf(" %.1f |", MiB(bench.Run(shape, memory).vote.sums().at("bytes/suffix")));
    }
    std::printf(" %.1f |\n", MiB(SuffixBytes(bytes, PrefixOf(shape, blocks), WaveOf(shape, blocks)).hot_set));
  }
}

// The longest prompt and response, 18 : 10 as in the paper's table, whose planned peak is within the budget.
Shape Longest(const ByteShape& bytes, const Memory& memory, int64_t budget_bytes, int64_t max_tokens) {
  const auto of = [](int64_t tokens) { return Shape{tokens * 64 / 100, tokens - tokens * 64 / 100, 2}; };
  int64_t low = 8, high = max_tokens;
  while (low < high) {
    const int64_t middle = (low + high + 1) / 2;
    if (PlannedPeak(bytes, of(middle), memory) <= budget_bytes) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return of(low);
}

void PrintCapacity(Bench& bench, int64_t budget_bytes) {
  std::printf(
      "\n### Capacity: the longest prompt + response at N = 2 in %.0f MiB of activations, prompt : response as 64 : "
      "36\n\n",
      MiB(budget_bytes));
  std::printf("| schedule and memory | tokens | prompt + response | over dense keep-all | measured peak MiB |\n");
  std::printf("|---|---:|---:|---:|---:|\n");
  const ByteShape bytes = bench.Bytes();
  const std::vector<Memory> ways = {
      {"dense, keep-all", v1::S0, v1::S0, 0, false, 0, true},         {"dense, S4", v1::S0, v1::S4, 0, false, 0, true},
      {"reuse, keep-all, offload", v1::S0, v1::S0, 0, true},          {"reuse, S4, offload", v1::S4, v1::S4, 0, true},
      {"reuse, S5 in blocks of 256, suffix S4", v1::S5, v1::S4, 256},
  };
  double base = 0;
  for (const Memory& memory : ways) {
    const Shape shape = Longest(bytes, memory, budget_bytes, bytes.config.max_positions);
    const auto tokens = static_cast<double>(shape.prompt + shape.response);
    if (base == 0) base = tokens;
    const double peak = bench.Run(shape, memory).vote.sums().at("bytes/peak");
    std::printf("| %s | %.0f%s | %ld + %ld | %.2f × | %.1f |\n", memory.name.c_str(), tokens,
                shape.prompt + shape.response == bytes.config.max_positions ? " (the model's positions)" : "",
                shape.prompt, shape.response, tokens / base, MiB(peak));
  }
}

// Under budgets between keep-all's need and the least: the planner's choice against the best measured way that fits.
void PrintChoices(Bench& bench, const Shape& shape, const std::vector<PolicyRow>& rows, int rounds) {
  std::printf("\n### The planner's choice against the best of the table above that fits\n\n");
  std::printf(
      "| budget MiB | the planner's choice | s | best of the table | s | ratio |\n|---:|---|---:|---|---:|---:|\n");
  const ByteShape bytes = bench.Bytes();
  const int64_t all = PlannedPeak(bytes, shape, rows[0].memory);
  for (const double part : {1.05, 0.8, 0.6, 0.4, 0.3}) {
    const auto budget = static_cast<int64_t>(part * static_cast<double>(all));
    v1::ClusterReport report;
    const Measured planned = bench.RunPlanned(shape, budget, rounds, &report);
    const PolicyRow* best = nullptr;
    for (const PolicyRow& row : rows) {
      if (PlannedPeak(bytes, shape, row.memory) > budget) continue;
      if (best == nullptr || row.measured.median() < best->measured.median()) best = &row;
    }
    std::string choice = planned.seconds.empty() ? "refused" : v1::TapePolicy_Name(report.prefix_policy());
    if (report.offload_prefix()) choice += " offloaded";
    if (report.prefix_block_rows() > 0) choice += " in blocks of " + std::to_string(report.prefix_block_rows());
    if (!planned.seconds.empty()) {
      choice +=
          ", " + v1::TapePolicy_Name(report.suffix_policy()) + ", " + std::to_string(report.wave_sizes(0)) + " a wave";
    }
    const double seconds = planned.seconds.empty() ? std::numeric_limits<double>::quiet_NaN() : planned.median();
    const double best_s = best == nullptr ? std::numeric_limits<double>::quiet_NaN() : best->measured.median();
    std::printf("| %.0f | %s | %.2f | %s | %.2f | %.3f |\n", MiB(budget), choice.c_str(), seconds,
                best == nullptr ? "none" : best->memory.name.c_str(), best_s, seconds / best_s);
  }
}

// The bars of this part of the design.
void PrintTargets(const ByteShape& bytes, const Shape& shape, const std::vector<PolicyRow>& rows) {
  const auto row = [&](const std::string& name) {
    const auto it = std::find_if(rows.begin(), rows.end(), [&](const PolicyRow& r) { return r.memory.name == name; });
    CHECK(it != rows.end()) << name;
    return *it;
  };
  const auto verdict = [](bool met, const std::string& text, double value, double bar) {
    std::printf("* %s: %s: %.3f (bar %.3f)\n", met ? "met" : "**missed**", text.c_str(), value, bar);
  };
  std::printf("\n### Targets\n\n");
  const PolicyRow keep = row("S0, S0"), s1 = row("S1, S1"), s2 = row("S2, S2"), away = row("S0 offloaded, S0");
  const double s1_cost = MedianRatio(s1.measured, keep.measured), s2_cost = MedianRatio(s2.measured, keep.measured);
  const double s2_bar = FlopsFactor(bytes.config, shape, s2.memory) + 0.03;
  verdict(s1_cost <= 1.06, "seconds of S1 over keep-all", s1_cost, 1.06);
  verdict(s2_cost <= s2_bar, "seconds of S2 over keep-all, against the FLOPs it adds and 3 %", s2_cost, s2_bar);
  for (const char* policy : {"S0", "S1", "S2"}) {
    const PolicyRow resident = row(std::string(policy) + ", " + policy);
    const double cost = MedianRatio(row(std::string(policy) + " offloaded, " + policy).measured, resident.measured);
    verdict(cost <= 1.02, std::string("seconds of offload over the same policy resident, ") + policy, cost, 1.02);
  }
  const auto peak = [](const PolicyRow& r) { return r.measured.vote.sums().at("bytes/suffix"); };
  const double left = peak(away) / peak(keep), left_s1 = peak(row("S1 offloaded, S1")) / peak(keep);
  verdict(left <= 0.41, "Phase B's peak of S0 offloaded, part of keep-all's", left, 0.41);
  verdict(left_s1 <= 0.25, "Phase B's peak of S1 offloaded, part of keep-all's (the aim)", left_s1, 0.25);
}

int Main(int argc, char** argv) {
  std::string model;
  uint32_t threads = 2;
  int rounds = 4;
  CLI::App app("memory against time");
  app.add_option("--model", model)->required();
  app.add_option("--threads", threads);
  app.add_option("--rounds", rounds);
  CLI11_PARSE(app, argc, argv);
  Bench bench(model, threads);
  const Shape shape{2048, 410, 4};  // prompt 10 : response 2, the paper's split
  const std::vector<PolicyRow> rows = MeasurePolicies(bench, shape, rounds);
  PrintPolicies(bench, shape, rows);
  PrintOffload(rows);
  PrintFlatness(bench);
  PrintCapacity(bench, 96 * kMiB);
  PrintChoices(bench, shape, rows, rounds);
  PrintApply(model, threads, rounds);
  PrintTargets(bench.Bytes(), shape, rows);
  return 0;
}

}  // namespace
}  // namespace stemma::testing

int main(int argc, char** argv) { return stemma::testing::Main(argc, argv); }
