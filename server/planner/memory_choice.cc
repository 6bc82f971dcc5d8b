#include "server/planner/memory_choice.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/cost/tape_policy.h"

namespace stemma::server {
namespace {

// GEMMs do not get faster beyond so many rows, and a wave's activations leave the caches (make bench: one trajectory of
// 1,279 rows a wave runs 10 to 15 % faster than three); smaller waves leave memory to longer prompts.
constexpr int64_t kWaveRows = 2048;
constexpr int64_t kBlockRows[] = {8192, 4096, 2048, 1024, 512, 256, 128};
constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

WaveRun RunOf(const MemberShape& member) {
  const int64_t own_prefix = member.dense ? member.prefix_rows : 0, rows = own_prefix + member.rows;
  return {.rows = rows,
          .longest_rows = rows,
          .ancestor_rows = member.dense ? 0 : member.prefix_rows,
          .kv_only_rows = own_prefix};
}

// Packs members in order: a wave ends where the next member would pass the budget or the rows worth packing. Greedy is
// optimal here, since every part of a wave that fits, fits.
class WavePacking {
 public:
  WavePacking(const MemoryOptions& options, const MemoryAlternative& way, int64_t budget_bytes)
      : options_(options), way_(way), budget_bytes_(budget_bytes) {}

  // False: a wave passes the budget, though it is of one member or forced.
  bool Pack(const ClusterShape& cluster) {
    for (const MemberShape& member : cluster.members) {
      Open joined = Joined(member);
      if (joined.members > 1 && !Takes(joined)) {
        Close();
        joined = Joined(member);
      }
      open_ = std::move(joined);
    }
    if (open_.members > 0) Close();
    return largest_.peak() <= budget_bytes_;
  }

  const std::vector<uint32_t>& sizes() const { return sizes_; }
  const PhaseBytes& largest() const { return largest_; }

 private:
  PhaseBytes BytesOf(const WaveShape& wave) const {
    if (!options_.forward_only) return SuffixBytes(options_.shape, way_.prefix, wave);
    return {.hot_set = ForwardPrefixBytes(options_.shape, way_.prefix.rows),
            .working_set = ForwardWaveBytes(options_.shape, wave)};
  }

  // The wave at work.
  struct Open {
    WaveShape wave;
    int64_t members = 0;
    WaveRun run = {};     // its last members, behind
    int64_t prefix = -1;  // this prefix; -1: a trajectory on its own
  };

  Open Joined(const MemberShape& member) const {
    Open joined = open_;
    const WaveRun one = RunOf(member);
    if (joined.members > 0 && !member.dense && joined.prefix == member.prefix) {
      joined.run.rows += one.rows;
      joined.run.longest_rows = std::max(joined.run.longest_rows, one.rows);
    } else {
      joined.run = one;
    }
    joined.prefix = member.dense ? -1 : member.prefix;
    joined.wave.rows += one.rows;
    joined.wave.kv_only_rows += one.kv_only_rows;
    joined.wave.policy = way_.suffix_policy;
    AddRun(joined.run, joined.wave);
    ++joined.members;
    return joined;
  }

  bool Takes(const Open& joined) const {
    if (options_.layout == v1::ONE_BY_ONE) return false;
    if (options_.wave_suffixes > 0) return joined.members <= options_.wave_suffixes;
    return joined.wave.rows <= kWaveRows && (budget_bytes_ == kNoLimit || BytesOf(joined.wave).peak() <= budget_bytes_);
  }

  void Close() {
    const PhaseBytes bytes = BytesOf(open_.wave);
    if (sizes_.empty() || bytes.peak() > largest_.peak()) largest_ = bytes;
    sizes_.push_back(static_cast<uint32_t>(open_.members));
    open_ = {};
  }

  const MemoryOptions& options_;
  const MemoryAlternative& way_;
  const int64_t budget_bytes_;
  Open open_;
  std::vector<uint32_t> sizes_;
  PhaseBytes largest_;
};

int64_t HostBytesMax(const MemoryOptions& options) { return options.host_bytes > 0 ? options.host_bytes : kNoLimit; }

PhaseWork WorkOf(const MemoryOptions& options, const ClusterShape& cluster, const MemoryAlternative& way,
                 int64_t waves) {
  if (options.forward_only) return ForwardClusterWork(options.shape, cluster, waves);
  return ClusterWork(options.shape, cluster, way.prefix, way.suffix_policy, waves);
}

void FillPrefixBytes(const MemoryOptions& options, MemoryChoice& choice) {
  const PrefixShape& prefix = choice.way.prefix;
  if (options.forward_only || prefix.rows == 0) return;
  choice.prefix_forward = PrefixForwardBytes(options.shape, prefix);
  choice.prefix_backward = PrefixBackwardBytes(options.shape, prefix);
  choice.host_bytes = HostTapeBytes(options.shape, prefix);
}

MemoryChoice Pack(const MemoryOptions& options, const ClusterShape& cluster, const MemoryAlternative& way,
                  int64_t budget_bytes) {
  MemoryChoice choice;
  choice.way = way;
  FillPrefixBytes(options, choice);
  WavePacking packing(options, way, budget_bytes);
  packing.Pack(cluster);
  choice.wave_sizes = packing.sizes();
  choice.suffix = packing.largest();
  choice.peak_bytes = std::max({choice.prefix_forward.peak(), choice.suffix.peak(), choice.prefix_backward.peak()});
  return choice;
}

std::vector<PrefixShape> PrefixAlternatives(const MemoryOptions& options, int64_t rows,
                                            const std::vector<int64_t>& lengths) {
  std::vector<int64_t> blocks = {options.prefix_block_rows};
  if (options.prefix_block_rows == 0) {
    for (const int64_t block : kBlockRows) {
      if (block < rows) blocks.push_back(block);
    }
  }
  std::vector<PrefixShape> shapes;
  for (const v1::TapePolicy policy : {v1::S0, v1::S1, v1::S2, v1::S3, v1::S4, v1::S5}) {
    if (options.prefix_policy != v1::TAPE_POLICY_UNSPECIFIED && options.prefix_policy != policy) continue;
    for (const bool offload : {false, true}) {
      if (options.offload == (offload ? v1::OFFLOAD_OFF : v1::OFFLOAD_ON)) continue;
      if (offload && !KeepsInputs(policy)) continue;  // nothing to move
      for (const int64_t block : blocks) {
        shapes.push_back({.rows = rows,
                          .lengths = lengths,
                          .block_rows = block < rows ? block : 0,
                          .policy = policy,
                          .offload = offload});
      }
    }
  }
  return shapes;
}

// The fewest bytes that any alternative needs, with one suffix a wave where that is free.
MemoryAnswer NothingFits(const MemoryOptions& options, const ClusterShape& cluster,
                         const std::vector<MemoryAlternative>& ways) {
  MemoryAnswer answer = {.choice = std::nullopt, .bytes_needed = kNoLimit};
  int64_t host_bytes = kNoLimit;
  for (const MemoryAlternative& way : ways) {
    if (options.stopped()) break;
    const MemoryChoice least = Pack(options, cluster, way, /*budget_bytes=*/0);
    if (least.peak_bytes <= options.budget_bytes) host_bytes = std::min(host_bytes, least.host_bytes);
    answer.bytes_needed = std::min(answer.bytes_needed, least.peak_bytes);
  }
  if (host_bytes != kNoLimit) answer.host_bytes_needed = host_bytes;
  return answer;
}

std::string Reason(const MemoryOptions& options, const ClusterShape& cluster, const MemoryAlternative& first,
                   const MemoryChoice& choice, size_t alternatives) {
  if (options.forward_only) return "no tape: forward only";
  const std::string way = WayText(choice.way);
  const std::string budget = BytesText(options.budget_bytes);
  if (choice.cheapest) return absl::StrCat(way, ": needs ", BytesText(choice.peak_bytes), " of ", budget);
  const MemoryChoice wanted = Pack(options, cluster, first, kNoLimit);
  std::string text = absl::StrCat(way, ": ", WayText(first), " in ", wanted.wave_sizes.size(), " waves needs ",
                                  BytesText(wanted.peak_bytes), " of ", budget);
  if (wanted.host_bytes > HostBytesMax(options)) {
    absl::StrAppend(&text, " and ", BytesText(wanted.host_bytes), " of the host's ", BytesText(options.host_bytes));
  }
  if (alternatives > 1) absl::StrAppend(&text, "; the fastest that fits");
  return text;
}

}  // namespace

std::vector<MemoryAlternative> Alternatives(const MemoryOptions& options, const ClusterShape& cluster) {
  std::vector<PrefixShape> prefixes = {{}};
  const int64_t rows = PackedPrefixRows(cluster);
  if (rows > 0) {
    prefixes = PrefixAlternatives(options, rows, cluster.prefix_rows);
    if (options.forward_only) prefixes = {{.rows = rows, .lengths = cluster.prefix_rows}};
  }
  std::vector<MemoryAlternative> ways;
  for (const PrefixShape& prefix : prefixes) {
    for (const v1::TapePolicy policy : {v1::S0, v1::S1, v1::S2, v1::S3, v1::S4}) {
      if (options.forward_only && policy != v1::S0) continue;
      const bool forced = !options.forward_only && options.suffix_policy != v1::TAPE_POLICY_UNSPECIFIED;
      if (!forced || options.suffix_policy == policy) ways.push_back({prefix, policy});
    }
  }
  return ways;
}

std::optional<MemoryChoice> Evaluate(const MemoryOptions& options, const ClusterShape& cluster,
                                     const MemoryAlternative& way) {
  MemoryChoice choice = Pack(options, cluster, way, options.budget_bytes);
  if (choice.peak_bytes > options.budget_bytes || choice.host_bytes > HostBytesMax(options)) return std::nullopt;
  if (way.prefix.offload) choice.headroom_bytes = options.budget_bytes - choice.peak_bytes;
  choice.work = WorkOf(options, cluster, way, static_cast<int64_t>(choice.wave_sizes.size()));
  choice.seconds = Seconds(choice.work, options.rates);
  return choice;
}

MemoryAnswer ChooseMemory(const MemoryOptions& options, const ClusterShape& cluster) {
  const std::vector<MemoryAlternative> ways = Alternatives(options, cluster);
  // The waves of no budget bound the seconds of every alternative from below.
  WavePacking ideal(options, ways.front(), kNoLimit);
  ideal.Pack(cluster);
  const auto waves = static_cast<int64_t>(ideal.sizes().size());
  const auto bound = [&](const MemoryAlternative& way) {
    return Seconds(WorkOf(options, cluster, way, waves), options.rates).total();
  };
  const auto finish = [&](MemoryChoice choice, const MemoryAlternative& first, bool cheapest) {
    choice.cheapest = cheapest;
    choice.reason = Reason(options, cluster, first, choice, ways.size());
    return MemoryAnswer{.choice = std::move(choice)};
  };
  std::optional<MemoryChoice> best = Evaluate(options, cluster, ways.front());
  // The first keeps most: no work is made twice. Copies may make it dearer than another.
  if (best && static_cast<int64_t>(best->wave_sizes.size()) == waves && !ways.front().prefix.offload) {
    return finish(*std::move(best), ways.front(), /*cheapest=*/true);
  }
  std::vector<std::pair<double, size_t>> order;
  for (size_t i = 0; i < ways.size(); ++i) {
    if (options.stopped()) return {};
    order.emplace_back(bound(ways[i]), i);
  }
  std::sort(order.begin(), order.end());
  const MemoryAlternative& first = ways[order.front().second];
  for (const auto& [seconds, index] : order) {
    if (best && seconds >= best->seconds.total()) break;
    if (options.stopped()) return {};
    std::optional<MemoryChoice> choice = Evaluate(options, cluster, ways[index]);
    if (choice && (!best || choice->seconds.total() < best->seconds.total())) best = std::move(choice);
  }
  if (!best) return NothingFits(options, cluster, ways);
  const bool cheapest = best->seconds.total() <= order.front().first;
  return finish(*std::move(best), first, cheapest);
}

int64_t HeadroomPeaks::peak() const { return std::max({prefix_forward, suffix, prefix_backward}); }

HeadroomPeaks PeaksWithHeadroom(const MemoryOptions& options, const MemoryChoice& choice) {
  HeadroomPeaks peaks{choice.prefix_forward.peak(), choice.suffix.peak(), choice.prefix_backward.peak()};
  if (choice.headroom_bytes == 0) return peaks;
  PrefixShape prefix = choice.way.prefix;
  prefix.headroom_bytes = choice.headroom_bytes;
  peaks.prefix_forward = PrefixForwardBytes(options.shape, prefix).peak();
  peaks.suffix += std::min(choice.host_bytes, choice.headroom_bytes);
  peaks.prefix_backward = PrefixBackwardBytes(options.shape, prefix).peak();
  return peaks;
}

int64_t FewestBytes(const MemoryOptions& options, const ClusterShape& cluster) {
  int64_t fewest = kNoLimit;
  for (const MemoryAlternative& way : Alternatives(options, cluster)) {
    const MemoryChoice least = Pack(options, cluster, way, /*budget_bytes=*/0);
    if (least.host_bytes <= HostBytesMax(options)) fewest = std::min(fewest, least.peak_bytes);
  }
  return fewest;
}

std::string BytesText(int64_t bytes) {
  const char* const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(units)) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? absl::StrCat(bytes, " B") : absl::StrFormat("%.3g %s", value, units[unit]);
}

std::string WayText(const MemoryAlternative& way) {
  std::string text;
  if (way.prefix.rows > 0) {
    absl::StrAppend(&text, "prefix ", v1::TapePolicy_Name(way.prefix.policy), way.prefix.offload ? " offloaded" : "");
    if (way.prefix.block_rows > 0) absl::StrAppend(&text, " in blocks of ", way.prefix.block_rows, " rows");
    absl::StrAppend(&text, ", ");
  }
  return absl::StrCat(text, "suffixes ", v1::TapePolicy_Name(way.suffix_policy));
}

}  // namespace stemma::server
