#include "tests/bench/choice_table.h"

#include <cstdio>
#include <memory>
#include <string>

#include "glog/logging.h"

namespace stemma::testing {
namespace {

const PolicyRow* FastestThatFits(const ByteShape& bytes, const Shape& shape, const std::vector<PolicyRow>& rows,
                                 int64_t budget_bytes) {
  const PolicyRow* best = nullptr;
  for (const PolicyRow& row : rows) {
    if (PlannedPeak(bytes, shape, row.memory) > budget_bytes) continue;
    if (best == nullptr || row.ratio().median < best->ratio().median) best = &row;
  }
  return best;
}

std::string ChoiceOf(const v1::ClusterReport& report) {
  std::string choice = v1::TapePolicy_Name(report.prefix_policy());
  if (report.offload_prefix()) choice += " offloaded";
  if (report.prefix_block_rows() > 0) choice += " in blocks of " + std::to_string(report.prefix_block_rows());
  return choice + ", " + v1::TapePolicy_Name(report.suffix_policy()) + ", " + std::to_string(report.wave_sizes(0)) +
         " a wave";
}

void PrintChoice(MemoryRuns& runs, const Shape& shape, const PolicyRow& best, int64_t budget_bytes, int rounds) {
  const std::unique_ptr<InProcess> engine = runs.Planned(shape, budget_bytes);
  CHECK(engine != nullptr) << "the planner refuses " << budget_bytes << " bytes, in which " << best.memory.name
                           << " fits";
  const auto seconds = InTurns(
      {[&] { return runs.RunPlanned(*engine).seconds; }, [&] { return runs.Run(shape, best.memory).seconds; }}, rounds);
  std::printf("| %.0f | %s | %s | %s | %s | %s |\n", MiB(budget_bytes),
              ChoiceOf(engine->plan().report.steps(0).clusters(0)).c_str(), Spread(seconds[0]).text(2).c_str(),
              best.memory.name.c_str(), Spread(seconds[1]).text(2).c_str(),
              RatioOf(seconds[0], seconds[1]).text(3).c_str());
}

}  // namespace

void PrintChoices(MemoryRuns& runs, const Shape& shape, const std::vector<PolicyRow>& rows, int rounds) {
  std::printf("\n### The planner's choice against the fastest way above that fits: %s (budgets above the state)\n\n",
              shape.text().c_str());
  std::printf("| budget MiB | the planner's choice | s | fastest above | s | ratio |\n|---:|---|---:|---|---:|---:|\n");
  const ByteShape bytes = runs.Bytes();
  const int64_t all = PlannedPeak(bytes, shape, KeepAll());
  for (const double part : {1.05, 0.8, 0.6, 0.4, 0.3}) {
    const auto budget_bytes = static_cast<int64_t>(part * static_cast<double>(all));
    const PolicyRow* best = FastestThatFits(bytes, shape, rows, budget_bytes);
    if (best != nullptr) PrintChoice(runs, shape, *best, budget_bytes, rounds);
  }
}

}  // namespace stemma::testing
