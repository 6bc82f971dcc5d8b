#include "tests/bench/reach_tables.h"

#include <cstdio>
#include <vector>

namespace stemma::testing {
namespace {

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

}  // namespace

// The largest phase B of keep-all and with the dormant set away, over N and over P.
Flatness PrintFlatness(MemoryRuns& runs) {
  const Memory keep{"keep-all"}, away{"S2 offloaded", v1::S2, v1::S2, 0, true},
      blocks{"S5 blocks", v1::S5, v1::S4, 512};
  std::printf("\n### Phase B's peak over N and P (measured MiB, response 200)\n\n");
  std::printf("| P | N | keep-all | S2 offloaded | S5 in blocks of 512 | of which K/V and their gradients |\n");
  std::printf("|---:|---:|---:|---:|---:|---:|\n");
  const ByteShape bytes = runs.Bytes();
  std::vector<double> peaks, beyond;  // of the last column but one
  for (const Shape& shape : {Shape{1000, 200, 2}, Shape{1000, 200, 8}, Shape{2000, 200, 2}, Shape{3800, 200, 2}}) {
    std::printf("| %ld | %ld |", shape.prompt, shape.rollouts);
    double peak = 0;
    for (const Memory& memory : {keep, away, blocks}) {
      peak = runs.Run(shape, memory).suffix_bytes();
      std::printf(" %.1f |", MiB(peak));
    }
    const int64_t hot_set = SuffixBytes(bytes, PrefixOf(shape, blocks), WaveOf(shape, blocks)).hot_set;
    std::printf(" %.1f |\n", MiB(hot_set));
    peaks.push_back(peak);
    beyond.push_back(peak - static_cast<double>(hot_set));
  }
  return {.in_n = peaks[1] / peaks[0], .in_p = beyond.back() / beyond.front()};
}

void PrintCapacity(MemoryRuns& runs, int64_t budget_bytes) {
  std::printf(
      "\n### Capacity: the longest prompt + response at N = 2 in %.0f MiB of activations, prompt : response as 64 : "
      "36\n\n",
      MiB(budget_bytes));
  std::printf("| schedule and memory | tokens | prompt + response | over dense keep-all | measured peak MiB |\n");
  std::printf("|---|---:|---:|---:|---:|\n");
  const ByteShape bytes = runs.Bytes();
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
    const double peak = static_cast<double>(runs.Run(shape, memory).sums().peak_bytes());
    std::printf("| %s | %.0f%s | %ld + %ld | %.2f × | %.1f |\n", memory.name.c_str(), tokens,
                shape.prompt + shape.response == bytes.config.max_positions ? " (the model's positions)" : "",
                shape.prompt, shape.response, tokens / base, MiB(peak));
  }
}

}  // namespace stemma::testing
