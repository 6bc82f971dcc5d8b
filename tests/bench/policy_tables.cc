#include "tests/bench/policy_tables.h"

#include <algorithm>
#include <cstdio>

#include "common/cost/flops.h"
#include "glog/logging.h"
#include "tests/testing/one_segment.h"

namespace stemma::testing {
namespace {

std::vector<Memory> Policies() {
  std::vector<Memory> all = {KeepAll()};
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

}  // namespace

const Memory& KeepAll() {
  static const Memory keep_all{"S0, S0"};
  return keep_all;
}

std::vector<PolicyRow> MeasurePolicies(MemoryRuns& runs, const PolicyShapes& shapes, int rounds) {
  std::vector<PolicyRow> rows;
  for (const Memory& memory : Policies()) {
    PolicyRow row;
    row.memory = memory;
    row.bytes_run = runs.Run(shapes.bytes, memory);
    const auto seconds = InTurns({[&] { return runs.Run(shapes.seconds, KeepAll()).seconds; },
                                  [&] {
                                    row.seconds_run = runs.Run(shapes.seconds, memory);
                                    return row.seconds_run.seconds;
                                  }},
                                 rounds);
    row.keep_all_s = seconds[0];
    row.seconds = seconds[1];
    rows.push_back(std::move(row));
  }
  return rows;
}

const PolicyRow& RowOf(const std::vector<PolicyRow>& rows, const std::string& name) {
  const auto it = std::find_if(rows.begin(), rows.end(), [&](const PolicyRow& r) { return r.memory.name == name; });
  CHECK(it != rows.end()) << name;
  return *it;
}

double FlopsFactor(const ModelConfig& config, const Shape& shape, const Memory& memory) {
  const double n = static_cast<double>(shape.rollouts);
  const double base =
      PrefixFlops(config, shape.prompt - 1).total() + n * SuffixFlops(config, shape.prompt - 1, shape.response).total();
  const PrefixShape prefix = PrefixOf(shape, memory);
  const double again =
      PrefixRecomputeParts(ByteShape{.config = config}, OneSegment(0, prefix.rows), prefix.policy).total() +
      n * SuffixRecomputeParts(config, OneSegment(shape.prompt - 1, shape.response), memory.suffix).total();
  return 1 + again / base;
}

void PrintPolicyBytes(MemoryRuns& runs, const Shape& shape, const std::vector<PolicyRow>& rows) {
  const ByteShape bytes = runs.Bytes();
  std::printf("\n### Policies and bytes: %s, one suffix a wave\n\n", shape.text().c_str());
  std::printf("MiB at the highest moment of each phase, measured (planned), above the state.\n\n");
  std::printf("| prefix, suffix | A | B | B of keep-all | C | host |\n|---|---:|---:|---:|---:|---:|\n");
  for (const PolicyRow& row : rows) {
    const Measured& m = row.bytes_run;
    const PrefixShape prefix = PrefixOf(shape, row.memory);
    std::printf("| %s | %.1f (%.1f) | %.1f (%.1f) | %.3f | %.1f (%.1f) | %.1f |\n", row.memory.name.c_str(),
                MiB(m.sums().prefix_forward_bytes()), MiB(PrefixForwardBytes(bytes, prefix).peak()),
                MiB(m.sums().suffix_bytes()), MiB(SuffixBytes(bytes, prefix, WaveOf(shape, row.memory)).peak()),
                m.suffix_bytes() / rows[0].bytes_run.suffix_bytes(), MiB(m.sums().prefix_backward_bytes()),
                MiB(PrefixBackwardBytes(bytes, prefix).peak()), MiB(m.sums().host_bytes()));
  }
}

void PrintPolicySeconds(MemoryRuns& runs, const Shape& shape, const std::vector<PolicyRow>& rows) {
  const ByteShape bytes = runs.Bytes();
  std::printf("\n### Policies and seconds: %s, one suffix a wave\n\n", shape.text().c_str());
  std::printf("Each in turns with keep-all, whose seconds of the same turns are beside it.\n\n");
  std::printf(
      "| prefix, suffix | s | keep-all s | of keep-all | FLOPs of keep-all | A, B, C s of the last run | MiB out "
      "and in | loads on demand | waits for a prefetch |\n");
  std::printf("|---|---:|---:|---:|---:|---:|---:|---:|---:|\n");
  for (const PolicyRow& row : rows) {
    const Measured& m = row.seconds_run;
    std::printf("| %s | %.2f | %.2f | %s | %.3f | %.2f, %.2f, %.2f | %.1f | %.0f | %.0f |\n", row.memory.name.c_str(),
                Spread(row.seconds).median, Spread(row.keep_all_s).median, row.ratio().text(3).c_str(),
                FlopsFactor(bytes.config, shape, row.memory), m.sums().prefix_forward_s(), m.sums().suffix_s(),
                m.sums().prefix_backward_s(), MiB(m.sums().offload_out_bytes() + m.sums().offload_in_bytes()),
                static_cast<double>(m.sums().offload_demand_loads()), static_cast<double>(m.sums().offload_waits()));
  }
}

}  // namespace stemma::testing
