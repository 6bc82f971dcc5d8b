#include "server/planner/cluster_ways.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "common/cost/tape_policy.h"

namespace stemma::server {
namespace {

constexpr int64_t kBlockRows[] = {8192, 4096, 2048, 1024, 512, 256, 128};

using PrefixWayList = absl::InlinedVector<PrefixWay, 11 * 8>;

PrefixWayList PrefixWays(const MemoryOptions& options, int64_t rows) {
  if (rows == 0) return {PrefixWay{}};
  absl::InlinedVector<int64_t, 8> blocks = {options.prefix_block_rows < rows ? options.prefix_block_rows : 0};
  if (options.prefix_block_rows == 0) {
    for (const int64_t block : kBlockRows) {
      if (block < rows) blocks.push_back(block);
    }
  }
  PrefixWayList ways;
  if (options.forward_only) {
    for (const int64_t block : blocks) ways.push_back({.block_rows = block});
    return ways;
  }
  for (const v1::TapePolicy policy : {v1::S0, v1::S1, v1::S2, v1::S3, v1::S4, v1::S5}) {
    if (options.prefix_policy != v1::TAPE_POLICY_UNSPECIFIED && options.prefix_policy != policy) continue;
    for (const bool offload : {false, true}) {
      if (options.offload == (offload ? v1::OFFLOAD_OFF : v1::OFFLOAD_ON)) continue;
      if (offload && !KeepsInputs(policy)) continue;  // nothing to move
      for (const int64_t block : blocks) ways.push_back({policy, offload, block});
    }
  }
  return ways;
}

absl::InlinedVector<v1::TapePolicy, 5> SuffixPolicies(const MemoryOptions& options) {
  if (options.forward_only) return {v1::S0};
  if (options.suffix_policy != v1::TAPE_POLICY_UNSPECIFIED) return {options.suffix_policy};
  return {v1::S0, v1::S1, v1::S2, v1::S3, v1::S4};
}

double CopySeconds(const Work& work, const Rates& rates) { return work[kCopy] * rates[kCopy]; }

}  // namespace

ClusterWays::ClusterWays(const MemoryOptions& options, const ClusterShape& cluster)
    : options_(options),
      borrowed_(cluster.borrowed),
      sums_(options.shape, cluster),
      cuts_(options, cluster),
      shape_{.rows = PackedPrefixRows(cluster), .lengths = cluster.prefix_rows},
      suffix_policies_(SuffixPolicies(options)) {
  const PrefixWayList ways = PrefixWays(options, borrowed_ ? 0 : shape_.rows);
  for (const PrefixWay& way : ways) {
    const PrefixWay* before = prefixes_.empty() ? nullptr : &prefixes_.back().way;
    if (before == nullptr || before->policy != way.policy || before->offload != way.offload) {
      kept_.push_back(KeptBy(way));
    }
    prefixes_.push_back({.way = way, .kept = kept_.size() - 1});
  }
}

const PrefixShape& ClusterWays::ShapeOf(const PrefixWay& way) {
  shape_.policy = way.policy;
  shape_.offload = way.offload;
  shape_.block_rows = way.block_rows;
  return shape_;
}

ClusterWays::Kept ClusterWays::KeptBy(const PrefixWay& way) {
  if (options_.forward_only) return {.device = {.hot_set = ForwardKeptBytes(options_.shape, shape_.rows)}};
  const PrefixShape& shape = ShapeOf(way);
  if (borrowed_) return {.device = {.hot_set = PrefixKeptBytes(options_.shape, shape).hot_set}};  // and no tape
  return {PrefixKeptBytes(options_.shape, shape), HostTapeBytes(options_.shape, shape)};
}

const ClusterWays::PhasePair& ClusterWays::BytesOf(Prefix& prefix) {
  if (!prefix.bytes) {
    prefix.bytes.emplace();
    const PrefixShape& shape = ShapeOf(prefix.way);
    if (!computes_prefixes()) return *prefix.bytes;
    prefix.bytes->forward =
        options_.forward_only ? ForwardPrefixBytes(options_.shape, shape) : PrefixForwardBytes(options_.shape, shape);
    if (!options_.forward_only) prefix.bytes->backward = PrefixBackwardBytes(options_.shape, shape);
  }
  return *prefix.bytes;
}

int64_t ClusterWays::LeftToWaves(const Prefix& prefix) const {
  return options_.budget_bytes - kept_[prefix.kept].device.peak();
}

PhaseWork ClusterWays::WorkOf(size_t index, int64_t waves) {
  PhaseWork work;
  work.suffix = options_.forward_only ? sums_.SuffixForwardOnly(waves) : sums_.Suffix(SuffixPolicyOf(index), waves);
  if (!computes_prefixes()) return work;
  const PrefixShape& shape = ShapeOf(PrefixOf(index).way);
  work.prefix_forward = sums_.PrefixForward(shape);
  if (!options_.forward_only) work.prefix_backward = sums_.PrefixBackward(shape);
  return work;
}

void ClusterWays::PricePrefixes() {
  if (std::exchange(priced_, true)) return;
  if (!computes_prefixes()) return;
  for (Prefix& prefix : prefixes_) {
    const Work forward = sums_.PrefixForward(ShapeOf(prefix.way));
    prefix.forward_s = Seconds(forward, options_.rates);
    prefix.copy_out_s = CopySeconds(forward, options_.rates);
    if (options_.forward_only) continue;
    const Work backward = sums_.PrefixBackward(shape_);
    prefix.backward_s = Seconds(backward, options_.rates);
    prefix.copy_in_s = CopySeconds(backward, options_.rates);
  }
}

double ClusterWays::SuffixSeconds(v1::TapePolicy policy, int64_t waves) const {
  return Seconds(options_.forward_only ? sums_.SuffixForwardOnly(waves) : sums_.Suffix(policy, waves), options_.rates);
}

double ClusterWays::TotalSeconds(const Prefix& prefix, double suffix_s) const {
  return HideCopies({prefix.forward_s, suffix_s, prefix.backward_s}, prefix.copy_out_s, prefix.copy_in_s,
                    options_.rates)
      .total();
}

// Its waves; null: it does not fit.
const WaveCut* ClusterWays::Fit(size_t index) {
  ++ways_evaluated_;
  Prefix& prefix = PrefixOf(index);
  if (kept_[prefix.kept].host > options_.host_bytes_max()) return nullptr;
  const PhasePair& bytes = BytesOf(prefix);
  if (std::max(bytes.forward.peak(), bytes.backward.peak()) > options_.budget_bytes) return nullptr;
  const int64_t left = LeftToWaves(prefix);
  const WaveCut& cut = cuts_.Cut(SuffixPolicyOf(index), left);
  return cut.largest.peak() <= left ? &cut : nullptr;
}

ClusterWays::Evaluated ClusterWays::Priced(size_t index, const WaveCut& cut) {
  PricePrefixes();
  return {index, &cut, TotalSeconds(PrefixOf(index), SuffixSeconds(SuffixPolicyOf(index), cut.waves()))};
}

// All that may fit, and the fastest of all if bytes were no limit.
ClusterWays::Candidates ClusterWays::CandidatesThatMayFit(Candidate& fastest) {
  PricePrefixes();
  absl::InlinedVector<double, kSuffixPolicies> suffix_s;
  absl::InlinedVector<int64_t, kSuffixPolicies> least_bytes;
  for (const v1::TapePolicy policy : suffix_policies_) {
    suffix_s.push_back(SuffixSeconds(policy, cuts_.fewest_waves()));
    least_bytes.push_back(cuts_.LeastBytes(policy));
  }
  Candidates candidates;
  fastest = {std::numeric_limits<double>::infinity(), 0};
  size_t index = 0;
  for (const Prefix& prefix : prefixes_) {
    const bool host_takes = kept_[prefix.kept].host <= options_.host_bytes_max();
    const int64_t left = LeftToWaves(prefix);
    for (size_t i = 0; i < suffix_s.size(); ++i, ++index) {
      const Candidate candidate = {TotalSeconds(prefix, suffix_s[i]), index};
      if (fastest > candidate) fastest = candidate;
      if (host_takes && least_bytes[i] <= left) candidates.push_back(candidate);
    }
  }
  return candidates;
}

std::optional<MemoryChoice> ClusterWays::Fastest() {
  // The first keeps most: no work is made twice. Copies may make it slower than another.
  std::optional<Evaluated> best;
  if (const WaveCut* cut = Fit(0); cut != nullptr) {
    if (cut->waves() == cuts_.fewest_waves() && !prefixes_[0].way.offload) {
      MemoryChoice choice = Choice(0, *cut);
      choice.cheapest = true;
      return choice;
    }
    best = Priced(0, *cut);
  }
  Candidate fastest;
  Candidates candidates = CandidatesThatMayFit(fastest);
  std::make_heap(candidates.begin(), candidates.end(), std::greater<>());
  while (!candidates.empty()) {
    const Candidate next = candidates.front();
    if (best && next.seconds >= best->seconds) break;  // in more waves it is slower still
    std::pop_heap(candidates.begin(), candidates.end(), std::greater<>());
    candidates.pop_back();
    const WaveCut* cut = Fit(next.index);
    if (cut == nullptr) continue;
    const Evaluated evaluated = Priced(next.index, *cut);
    if (!best || evaluated.seconds < best->seconds) best = evaluated;
  }
  if (!best) return std::nullopt;
  MemoryChoice choice = Choice(best->index, *best->cut);
  choice.cheapest = best->seconds <= fastest.seconds;
  if (!choice.cheapest) choice.wanted = Needs(fastest.index);
  return choice;
}

MemoryChoice ClusterWays::Choice(size_t index, const WaveCut& cut) {
  Prefix& prefix = PrefixOf(index);
  const PhasePair& bytes = BytesOf(prefix);
  const Kept& kept = kept_[prefix.kept];
  MemoryChoice choice;
  choice.way = {.prefix = ShapeOf(prefix.way), .suffix_policy = SuffixPolicyOf(index)};
  if (borrowed_) choice.way.prefix = {};
  choice.wave_sizes = cut.sizes;
  choice.prefix_forward = bytes.forward;
  choice.suffix = cut.largest;
  choice.suffix.hot_set = kept.device.hot_set;
  choice.suffix.dormant_set = kept.device.dormant_set;
  choice.prefix_backward = bytes.backward;
  choice.host_bytes = kept.host;
  choice.peak_bytes = std::max({choice.prefix_forward.peak(), choice.suffix.peak(), choice.prefix_backward.peak()});
  if (prefix.way.offload) choice.headroom_bytes = options_.budget_bytes - choice.peak_bytes;
  choice.work = WorkOf(index, cut.waves());
  choice.seconds = Seconds(choice.work, options_.rates);
  choice.others = prefixes_.size() * suffix_policies_.size() > 1;
  return choice;
}

WayNeeds ClusterWays::Needs(size_t index) {
  Prefix& prefix = PrefixOf(index);
  const PhasePair& bytes = BytesOf(prefix);
  const Kept& kept = kept_[prefix.kept];
  const WaveCut& cut = cuts_.Cut(SuffixPolicyOf(index), kNoLimit);
  const int64_t suffix = kept.device.peak() + cut.largest.peak();
  return {.prefix = prefix.way,
          .suffix_policy = SuffixPolicyOf(index),
          .waves = cut.waves(),
          .peak_bytes = std::max({bytes.forward.peak(), suffix, bytes.backward.peak()}),
          .host_bytes = kept.host};
}

std::vector<MemoryAlternative> ClusterWays::All() {
  std::vector<MemoryAlternative> ways;
  for (const Prefix& prefix : prefixes_) {
    for (const v1::TapePolicy policy : suffix_policies_) ways.push_back({ShapeOf(prefix.way), policy});
  }
  return ways;
}

std::optional<MemoryChoice> ClusterWays::Evaluate(const MemoryAlternative& way) {
  const PrefixShape& asked = way.prefix;
  prefixes_ = {{.way = {asked.policy, asked.offload, asked.block_rows}}};
  kept_ = {KeptBy(prefixes_[0].way)};
  suffix_policies_ = {way.suffix_policy};
  priced_ = false;
  const WaveCut* cut = Fit(0);
  if (cut == nullptr) return std::nullopt;
  return Choice(0, *cut);
}

ClusterWays::Fewest ClusterWays::FewestBytes() {
  Fewest fewest;
  int64_t wave = kNoLimit;
  for (const v1::TapePolicy policy : suffix_policies_) wave = std::min(wave, cuts_.LeastBytes(policy));
  for (Prefix& prefix : prefixes_) {
    const PhasePair& bytes = BytesOf(prefix);
    const Kept& kept = kept_[prefix.kept];
    const int64_t peak = std::max({bytes.forward.peak(), kept.device.peak() + wave, bytes.backward.peak()});
    fewest.of_device = std::min(fewest.of_device, peak);
    if (kept.host <= options_.host_bytes_max()) {
      fewest.of_device_within_host = std::min(fewest.of_device_within_host, peak);
    }
    if (peak <= options_.budget_bytes) fewest.of_host = std::min(fewest.of_host, kept.host);
  }
  return fewest;
}

}  // namespace stemma::server
