#include "server/planner/memory_choice.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/human.h"
#include "common/cost/context_share.h"
#include "server/planner/cluster_ways.h"
#include "server/planner/cut_rollouts.h"
#include "server/planner/memory_chooser.h"

namespace stemma::server {
namespace {

std::string WayText(bool has_prefix, const PrefixWay& prefix, v1::TapePolicy suffix_policy, bool shared) {
  std::string text;
  if (has_prefix) {
    absl::StrAppend(&text, "prefix ", v1::TapePolicy_Name(prefix.policy), prefix.offload ? " offloaded" : "");
    if (prefix.block_rows > 0) absl::StrAppend(&text, " in blocks of ", prefix.block_rows, " rows");
    absl::StrAppend(&text, ", ", shared ? absl::StrCat(KvText(prefix.regather), ", ") : "");
  }
  return absl::StrCat(text, "suffixes ", v1::TapePolicy_Name(suffix_policy));
}

// Says that rollouts are cut.
std::string CutText(const MemoryOptions& options, const MemoryChoice& choice) {
  if (choice.cut_waves == 0) return "";
  return absl::StrCat(", ", choice.cut_waves, choice.cut_waves == 1 ? " rollout" : " rollouts", " cut by rows over ",
                      options.shape.cp, " ranks");
}

// Says that waves are smaller than memory asks for, so that stages wait less for each other.
std::string SmallerWavesText(const MemoryOptions& options, const MemoryChoice& choice) {
  if (choice.wave_rows >= options.wave_rows) return "";
  return absl::StrCat(", waves of up to ", choice.wave_rows, " rows, or of one suffix, so that stages wait less");
}

}  // namespace

std::optional<MemoryOptions> WithFewerRounds(const MemoryOptions& options) {
  if (options.rounds_in_flight <= 1) return std::nullopt;
  MemoryOptions fewer = options;
  fewer.rounds_in_flight -= std::max<int64_t>(options.rounds_in_flight / 4, 1);
  return fewer;
}

MemoryAnswer ChooseMemory(const MemoryOptions& options, const ClusterShape& cluster) {
  MemoryAnswer answer;
  if (const auto choice = MemoryChooser(options).Choose(cluster)) {
    answer.choice = *choice;
    return answer;
  }
  MemoryOptions one_round = options;
  one_round.rounds_in_flight = 1;
  const ClusterWays::Fewest fewest = ClusterWays(one_round, WithAllCut(options, cluster)).FewestBytes();
  answer.bytes_needed = fewest.of_device;
  if (fewest.of_host != kNoLimit) answer.host_bytes_needed = fewest.of_host;
  return answer;
}

std::string MemoryReason(const MemoryOptions& options, const MemoryChoice& choice) {
  const bool shared = SharesRows(options.shape, choice.way.prefix);
  if (options.forward_only) {
    const int64_t block = choice.way.prefix.block_rows;
    return absl::StrCat("no tape: forward only", shared ? absl::StrCat(", ", KvText(choice.way.prefix.regather)) : "",
                        block > 0 ? absl::StrCat(", prefix in blocks of ", block, " rows") : "",
                        CutText(options, choice), SmallerWavesText(options, choice), ", needs ",
                        HumanBytes(choice.peak_bytes), " of ", HumanBytes(options.budget_bytes));
  }
  const std::string rounds =
      options.stages.empty()
          ? ""
          : absl::StrCat(" with ", choice.rounds_in_flight, " rounds in flight", SmallerWavesText(options, choice));
  const std::string way = absl::StrCat(WayText(choice.way, shared), CutText(options, choice), rounds),
                    budget = HumanBytes(options.budget_bytes);
  if (!choice.wanted) return absl::StrCat(way, ": needs ", HumanBytes(choice.peak_bytes), " of ", budget);
  const WayNeeds& wanted = *choice.wanted;
  std::string text =
      absl::StrCat(way, ": ", WayText(choice.way.prefix.rows > 0, wanted.prefix, wanted.suffix_policy, shared), " in ",
                   wanted.waves, " waves needs ", HumanBytes(wanted.peak_bytes), " of ", budget);
  if (wanted.host_bytes > options.host_bytes_max()) {
    absl::StrAppend(&text, " and ", HumanBytes(wanted.host_bytes), " of the host's ", HumanBytes(options.host_bytes));
  }
  if (choice.others) absl::StrAppend(&text, "; the fastest that fits");
  return text;
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
  MemoryOptions one_round = options;
  one_round.rounds_in_flight = 1;
  return std::min(ClusterWays(one_round, cluster).FewestBytes().of_device_within_host,
                  ClusterWays(one_round, WithAllCut(options, cluster)).FewestBytes().of_device_within_host);
}

std::string WayText(const MemoryAlternative& way, bool shared) {
  const PrefixShape& prefix = way.prefix;
  return WayText(prefix.rows > 0, {prefix.policy, prefix.offload, prefix.block_rows, prefix.regather},
                 way.suffix_policy, shared);
}

std::string KvText(bool regather) { return regather ? "K/V gathered again" : "K/V held"; }

}  // namespace stemma::server
