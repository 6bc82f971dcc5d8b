// Memory against time on this machine: tape policies, offload, blocks, capacity under one budget, and the planner's
// choices beside the best of what was measured. Prints the tables of docs/memory.md (tests/bench/bench.py puts them
// there).
//
//   memory_bench --model DIR [--threads 2] [--rounds 4]
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "common/cost.h"
#include "glog/logging.h"
#include "tests/bench/apply_table.h"
#include "tests/bench/memory_runs.h"
#include "tests/bench/offload_tables.h"

namespace stemma::testing {
namespace {

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
std::vector<PolicyRow> MeasurePolicies(MemoryRuns& bench, const Shape& shape, int rounds) {
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

void PrintPolicies(MemoryRuns& bench, const Shape& shape, const std::vector<PolicyRow>& rows) {
  const ByteShape bytes = bench.Bytes();
  std::printf("\n### Policies, bytes and seconds: %ld/%ld/%ld, one suffix a wave\n\n", shape.prompt, shape.response,
              shape.rollouts);
  std::printf(
      "| prefix, suffix | s (range) | of keep-all | FLOPs of keep-all | A MiB measured (planned) | B | C | host |\n");
  std::printf("|---|---:|---:|---:|---:|---:|---:|---:|\n");
  for (const PolicyRow& row : rows) {
    const auto& sums = row.measured.vote.sums();
    const PrefixShape prefix = PrefixOf(shape, row.memory);
    std::printf("| %s | %s | %s | %.3f | %.1f (%.1f) | %.1f (%.1f) | %.1f (%.1f) | %.1f |\n", row.memory.name.c_str(),
                Spread(row.measured.seconds).text(2).c_str(),
                RatioOf(row.measured.seconds, rows[0].measured.seconds).text(3).c_str(),
                FlopsFactor(bytes.config, shape, row.memory), MiB(sums.at("bytes/prefix_forward")),
                MiB(PrefixForwardBytes(bytes, prefix).peak()), MiB(sums.at("bytes/suffix")),
                MiB(SuffixBytes(bytes, prefix, WaveOf(shape, row.memory)).peak()),
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

// Phase B's peak in blocks: of N = 8 over N = 2; what lies beyond K/V, of the longest P over the shortest.
struct Flatness {
  double in_n = 0, in_p = 0;
};

// The largest phase B of keep-all and with the dormant set away, over N and over P.
Flatness PrintFlatness(MemoryRuns& bench) {
  const Memory keep{"keep-all"}, away{"S2 offloaded", v1::S2, v1::S2, 0, true},
      blocks{"S5 blocks", v1::S5, v1::S4, 512};
  std::printf("\n### Phase B's peak over N and P (measured MiB, response 200)\n\n");
  std::printf("| P | N | keep-all | S2 offloaded | S5 in blocks of 512 | of which K/V and their gradients |\n");
  std::printf("|---:|---:|---:|---:|---:|---:|\n");
  const ByteShape bytes = bench.Bytes();
  std::vector<double> peaks, beyond;  // of the last column but one
  for (const Shape& shape : {Shape{1000, 200, 2}, Shape{1000, 200, 8}, Shape{2000, 200, 2}, Shape{3800, 200, 2}}) {
    std::printf("| %ld | %ld |", shape.prompt, shape.rollouts);
    double peak = 0;
    for (const Memory& memory : {keep, away, blocks}) {
      peak = bench.Run(shape, memory).vote.sums().at("bytes/suffix");
      std::printf(" %.1f |", MiB(peak));
    }
    const int64_t hot_set = SuffixBytes(bytes, PrefixOf(shape, blocks), WaveOf(shape, blocks)).hot_set;
    std::printf(" %.1f |\n", MiB(hot_set));
    peaks.push_back(peak);
    beyond.push_back(peak - static_cast<double>(hot_set));
  }
  return {.in_n = peaks[1] / peaks[0], .in_p = beyond.back() / beyond.front()};
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

void PrintCapacity(MemoryRuns& bench, int64_t budget_bytes) {
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
void PrintChoices(MemoryRuns& bench, const Shape& shape, const std::vector<PolicyRow>& rows, int rounds) {
  std::printf("\n### The planner's choice against the best of the table above that fits (budgets above the state)\n\n");
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
    const auto seconds = [](const std::vector<double>& s) { return s.empty() ? "–" : Spread(s).text(2); };
    const std::vector<double> best_s = best == nullptr ? std::vector<double>() : best->measured.seconds;
    const bool both = !planned.seconds.empty() && best != nullptr;
    std::printf("| %.0f | %s | %s | %s | %s | %s |\n", MiB(budget), choice.c_str(), seconds(planned.seconds).c_str(),
                best == nullptr ? "none" : best->memory.name.c_str(), seconds(best_s).c_str(),
                both ? RatioOf(planned.seconds, best_s).text(3).c_str() : "–");
  }
}

// The bars of this part of the design.
void PrintTargets(const ByteShape& bytes, const Shape& shape, const std::vector<PolicyRow>& rows,
                  const std::vector<OffloadCost>& offload, const Flatness& flatness) {
  const auto row = [&](const std::string& name) {
    const auto it = std::find_if(rows.begin(), rows.end(), [&](const PolicyRow& r) { return r.memory.name == name; });
    CHECK(it != rows.end()) << name;
    return *it;
  };
  const auto verdict = [](double value, double bar, const std::string& text, const std::string& measured) {
    std::printf("* %s: %s: %s (bar %.3f)\n", value <= bar ? "met" : "**missed**", text.c_str(), measured.c_str(), bar);
  };
  const auto of_spread = [&](const Spread& spread, double bar, const std::string& text) {
    verdict(spread.median, bar, text, spread.text(3));
  };
  std::printf("\n### Targets\n\n");
  const PolicyRow keep = row("S0, S0"), s1 = row("S1, S1"), s2 = row("S2, S2");
  of_spread(RatioOf(s1.measured.seconds, keep.measured.seconds), 1.06, "seconds of S1 over keep-all");
  of_spread(RatioOf(s2.measured.seconds, keep.measured.seconds), FlopsFactor(bytes.config, shape, s2.memory) + 0.03,
            "seconds of S2 over keep-all, against the FLOPs it adds and 3 %");
  for (const OffloadCost& cost : offload) {
    of_spread(cost.bookkeeping(), 1.02,
              "seconds of offload's bookkeeping over the same policy resident, " + cost.policy);
    std::printf("* no bar: what its copies add to that, on cores that also compute: %s\n",
                cost.copies().text(3).c_str());
  }
  const auto peak = [&](const std::string& name) { return row(name).measured.vote.sums().at("bytes/suffix"); };
  const auto of_peak = [&](const std::string& name, double bar, const std::string& text) {
    const double left = peak(name) / peak("S0, S0");
    verdict(left, bar, text, std::to_string(left).substr(0, 5));
  };
  of_peak("S0 offloaded, S0", 0.41, "Phase B's peak of S0 offloaded, part of keep-all's");
  of_peak("S1 offloaded, S1", 0.25, "Phase B's peak of S1 offloaded, part of keep-all's (the aim)");
  const auto three = [](double value) { return std::to_string(value).substr(0, 5); };
  verdict(flatness.in_n, 1.01, "Phase B's peak in blocks, of N = 8 over N = 2", three(flatness.in_n));
  verdict(flatness.in_p, 1.03,
          "the same beyond K/V and their gradients, of P = 3800 over P = 1000 (the error of counting)",
          three(flatness.in_p));
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
  MemoryRuns bench(model, threads);
  const Shape shape{2048, 410, 4};  // prompt 10 : response 2, the paper's split
  const std::vector<PolicyRow> rows = MeasurePolicies(bench, shape, rounds);
  PrintPolicies(bench, shape, rows);
  PrintOffload(rows);
  const std::vector<OffloadCost> offload = MeasureOffloadCost(bench, shape, 2 * rounds);
  PrintOffloadCost(offload);
  PrintOffloadTimeline(bench, shape);
  const Flatness flatness = PrintFlatness(bench);
  PrintCapacity(bench, 96 * kMiB);
  PrintChoices(bench, shape, rows, rounds);
  PrintApply(model, threads, rounds);
  PrintTargets(bench.Bytes(), shape, rows, offload, flatness);
  return 0;
}

}  // namespace
}  // namespace stemma::testing

int main(int argc, char** argv) { return stemma::testing::Main(argc, argv); }
