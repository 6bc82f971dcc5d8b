// Memory against time on this machine: tape policies, offload, blocks, capacity under one budget, and the planner's
// choices beside the fastest of what was measured. Prints the tables of docs/memory.md (tests/bench/bench.py puts them
// there).
//
//   memory_bench --model DIR [--threads 2] [--rounds 12]
#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>
#include <vector>

#include "tests/bench/apply_table.h"
#include "tests/bench/choice_table.h"
#include "tests/bench/memory_runs.h"
#include "tests/bench/offload_tables.h"
#include "tests/bench/policy_tables.h"
#include "tests/bench/reach_tables.h"
#include "tests/testing/namespaces.h"

namespace stemma::testing {
namespace {

void PrintTarget(double value, double bar, const std::string& text, const std::string& measured) {
  std::printf("* %s: %s: %s (bar %.3f)\n", value <= bar ? "met" : "**missed**", text.c_str(), measured.c_str(), bar);
}

void PrintTarget(const Spread& spread, double bar, const std::string& text) {
  PrintTarget(spread.median, bar, text, spread.text(3));
}

void PrintTarget(double value, double bar, const std::string& text) {
  PrintTarget(value, bar, text, std::to_string(value).substr(0, 5));
}

// The bars of this part of the design.
void PrintTargets(const ModelConfig& config, const Shape& seconds_shape, const std::vector<PolicyRow>& rows,
                  const std::vector<OffloadCost>& offload, const Flatness& flatness) {
  std::printf("\n### Targets\n\n");
  const PolicyRow& s2 = RowOf(rows, "S2, S2");
  PrintTarget(RowOf(rows, "S1, S1").ratio(), 1.06, "seconds of S1 over keep-all");
  PrintTarget(s2.ratio(), FlopsFactor(config, seconds_shape, s2.memory) + 0.03,
              "seconds of S2 over keep-all, against the FLOPs it adds and 3 %");
  for (const OffloadCost& cost : offload) {
    PrintTarget(cost.bookkeeping(), 1.02,
                "seconds of offload's bookkeeping over the same policy resident, " + cost.policy);
    std::printf("* no bar: what its copies add to that, on cores that also compute: %s\n",
                cost.copies().text(3).c_str());
  }
  const auto part = [&](const std::string& name) {
    return RowOf(rows, name).bytes_run.suffix_bytes() / rows[0].bytes_run.suffix_bytes();
  };
  PrintTarget(part("S0 offloaded, S0"), 0.41, "Phase B's peak of S0 offloaded, part of keep-all's");
  PrintTarget(part("S1 offloaded, S1"), 0.25, "Phase B's peak of S1 offloaded, part of keep-all's (the aim)");
  PrintTarget(flatness.in_n, 1.01, "Phase B's peak in blocks, of N = 8 over N = 2");
  PrintTarget(flatness.in_p, 1.03,
              "the same beyond K/V and their gradients, of P = 3800 over P = 1000 (the error of counting)");
}

int Main(int argc, char** argv) {
  std::string model;
  uint32_t threads = 2;
  int rounds = 12;
  CLI::App app("memory against time");
  app.add_option("--model", model)->required();
  app.add_option("--threads", threads);
  app.add_option("--rounds", rounds)->check(CLI::PositiveNumber);
  bool apply_only = false;
  app.add_flag("--apply-only", apply_only, "only the tables of Apply, which take seconds");
  CLI11_PARSE(app, argc, argv);
  std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);  // a table is seen as it is made
  if (apply_only) {
    PrintApply(model, threads, rounds);
    return 0;
  }
  MemoryRuns runs(model, threads);
  const PolicyShapes shapes = {{2048, 410, 4}, {1024, 205, 2}};  // prompt 10 : response 2, the paper's split
  const std::vector<PolicyRow> rows = MeasurePolicies(runs, shapes, rounds);
  PrintPolicyBytes(runs, shapes.bytes, rows);
  PrintPolicySeconds(runs, shapes.seconds, rows);
  const Shape short_shape{512, 103, 2};
  const std::vector<OffloadCost> offload = MeasureOffloadCost(runs, short_shape, 4 * rounds);
  PrintOffloadCost(short_shape, offload);
  PrintOffloadTimeline(runs, shapes.bytes);
  const Flatness flatness = PrintFlatness(runs);
  PrintCapacity(runs, 96 * kMiB);
  PrintChoices(runs, shapes.seconds, rows, rounds);
  PrintApply(model, threads, rounds);
  PrintTargets(runs.Bytes().config, shapes.seconds, rows, offload, flatness);
  return 0;
}

}  // namespace
}  // namespace stemma::testing

int main(int argc, char** argv) { return stemma::testing::Main(argc, argv); }
