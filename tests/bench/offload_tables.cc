#include "tests/bench/offload_tables.h"

#include <cstdio>
#include <map>
#include <optional>

namespace stemma::testing {

Spread OffloadCost::copies() const {
  std::vector<double> parts;
  for (size_t i = 0; i < resident_s.size(); ++i) parts.push_back((offloaded_s[i] - nothing_s[i]) / resident_s[i]);
  return Spread(parts);
}

std::vector<OffloadCost> MeasureOffloadCost(MemoryRuns& runs, const Shape& shape, int rounds) {
  NothingCopyEngine nothing;
  ThreadCopyEngine copies;
  std::vector<OffloadCost> costs;
  for (const v1::TapePolicy policy : {v1::S0, v1::S1, v1::S2}) {
    OffloadCost cost;
    cost.policy = v1::TapePolicy_Name(policy);
    const Memory resident{"", policy, policy}, away{"", policy, policy, 0, /*offload=*/true};
    const auto seconds = [&](CopyEngine& engine, const Memory& memory) {
      return runs.RunWith(engine, /*wrong=*/&engine == &nothing, shape, memory).phase_seconds;
    };
    const auto measured = InTurns({[&] { return seconds(copies, resident); }, [&] { return seconds(nothing, away); },
                                   [&] { return seconds(copies, away); }},
                                  rounds);
    cost.resident_s = measured[0];
    cost.nothing_s = measured[1];
    cost.offloaded_s = measured[2];
    costs.push_back(std::move(cost));
  }
  return costs;
}

void PrintOffloadCost(const Shape& shape, const std::vector<OffloadCost>& costs) {
  std::printf("\n### Offload against the same policy on the device: its bookkeeping and its copies apart, %s\n\n",
              shape.text().c_str());
  std::printf(
      "Seconds of the phases, in turns. Bookkeeping: offloaded by a copy engine that moves nothing; the numbers of "
      "that run are\nwrong, only its seconds count.\n\n");
  std::printf(
      "| prefix and suffix | on the device s | bookkeeping s | with copies s | bookkeeping / on the device | "
      "with copies / on the device | copies' part |\n");
  std::printf("|---|---:|---:|---:|---:|---:|---:|\n");
  for (const OffloadCost& cost : costs) {
    std::printf("| %s | %s | %s | %s | %s | %s | %s |\n", cost.policy.c_str(), Spread(cost.resident_s).text(2).c_str(),
                Spread(cost.nothing_s).text(2).c_str(), Spread(cost.offloaded_s).text(2).c_str(),
                cost.bookkeeping().text(3).c_str(), cost.whole().text(3).c_str(), cost.copies().text(3).c_str());
  }
}

namespace {

struct TapeEntryTimes {
  std::optional<CopyRecord> out, in;
};

// In the order of the copies out, which is that of the layers. A copy in belongs to the last entry that was written to
// its block.
std::vector<TapeEntryTimes> ByEntry(const std::vector<CopyRecord>& records) {
  std::vector<TapeEntryTimes> entries;
  std::map<const void*, size_t> entry_at;
  for (const CopyRecord& record : records) {
    if (record.out) {
      entry_at[record.host] = entries.size();
      entries.push_back({record, std::nullopt});
    } else {
      entries[entry_at.at(record.host)].in = record;
    }
  }
  return entries;
}

void PrintTimes(const std::optional<CopyRecord>& copy, double begin_s) {
  if (!copy.has_value()) return static_cast<void>(std::printf(" – |"));
  std::printf(" %.0f–%.0f |", 1e3 * (copy->begun_s - begin_s), 1e3 * (copy->ended_s - begin_s));
}

}  // namespace

void PrintOffloadTimeline(MemoryRuns& runs, const Shape& shape) {
  std::printf("\n### Offload in time: when each layer's tape left and came back, in ms of one step\n");
  const Memory cases[] = {{"S0 offloaded without headroom", v1::S0, v1::S0, 0, true},
                          {"S0 offloaded with headroom for all", v1::S0, v1::S0, 0, true, 4096 * kMiB}};
  for (const Memory& memory : cases) {
    RecordingCopyEngine recording;
    runs.RunWith(recording, /*wrong=*/false, shape, memory);  // warm
    recording.TakeRecords();
    runs.RunWith(recording, /*wrong=*/false, shape, memory);
    const PhaseEnds& phases = runs.last_phases();
    const auto ms = [&](double s) { return 1e3 * (s - phases.begin_s); };
    std::printf("\n%s: A 0–%.0f, B –%.0f, C –%.0f.\n\n", memory.name.c_str(), ms(phases.prefix_forward_s),
                ms(phases.suffix_s), ms(phases.prefix_backward_s));
    std::printf("| layer | copied out | copied in |\n|---:|---:|---:|\n");
    int layer = 0;
    for (const TapeEntryTimes& entry : ByEntry(recording.TakeRecords())) {
      std::printf("| %d |", layer++);
      PrintTimes(entry.out, phases.begin_s);
      PrintTimes(entry.in, phases.begin_s);
      std::printf("\n");
    }
  }
}

}  // namespace stemma::testing
