#include "server/planner/cluster_ways.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "common/cost/context_share.h"
#include "common/cost/regather_bytes.h"
#include "server/planner/member_dealing.h"

namespace stemma::server {
namespace {

std::vector<uint32_t> Deal(const ByteShape& shape, const ClusterShape& cluster) {
  if (shape.cp == 1) return {};
  return DealMembers(shape.config, cluster.members, shape.cp);
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
      candidates_(options.candidate_stages()),
      borrowed_(cluster.borrowed),
      dealt_(Deal(options.shape, cluster)),
      sums_(options.shape, cluster, dealt_),
      cuts_(options, cluster, dealt_),
      shape_{.rows = PackedPrefixRows(cluster), .lengths = cluster.prefix_rows},
      suffix_policies_(SuffixPolicies(options)) {
  const PrefixWayList ways = PrefixWays(options, borrowed_ ? 0 : shape_.rows, cluster.split);
  for (const PrefixWay& way : ways) {
    const PrefixWay* before = prefixes_.empty() ? nullptr : &prefixes_.back().way;
    const bool blocks_differ = options.shape.cp > 1 || !options.stages.empty();
    if (before == nullptr || before->policy != way.policy || before->offload != way.offload || blocks_differ) {
      kept_.push_back(KeptBy(way));
    }
    prefixes_.push_back({.way = way, .kept = kept_.size() - 1});
  }
  has_others_ = prefixes_.size() * suffix_policies_.size() > 1;
}

const PrefixShape& ClusterWays::ShapeOf(const PrefixWay& way) {
  shape_.policy = way.policy;
  shape_.offload = way.offload;
  shape_.block_rows = way.block_rows;
  shape_.regather = way.regather;
  if (!SharesRows(options_.shape, shape_)) return shape_;
  const auto known =
      std::find_if(shares_.begin(), shares_.end(), [&](const auto& share) { return share.first == way.block_rows; });
  if (known != shares_.end()) {
    shape_.share = known->second;
    return shape_;
  }
  shape_.share = std::make_shared<const ContextShare>(options_.shape, shape_);
  shares_.emplace_back(way.block_rows, shape_.share);
  return shape_;
}

// The same for others, who may change it.
PrefixShape ClusterWays::AnsweredShape(const PrefixWay& way) {
  PrefixShape shape = ShapeOf(way);
  shape.share = nullptr;
  return shape;
}

PhaseBytes ClusterWays::KeptOnStage(const ByteShape& stage, const PrefixShape& shape) const {
  if (options_.forward_only) return {.hot_set = ForwardKeptBytes(stage, shape)};
  const PhaseBytes kept = PrefixKeptBytes(stage, shape);
  return borrowed_ ? PhaseBytes{.hot_set = kept.hot_set} : kept;  // and no tape
}

ClusterWays::Kept ClusterWays::KeptBy(const PrefixWay& way) {
  const PrefixShape& shape = ShapeOf(way);
  Kept kept;
  for (const size_t s : candidates_) {
    const ByteShape& stage = options_.all_stages()[s];
    kept.beside.stages.push_back({borrowed_ ? BesideLayer{} : RegatherBytes(stage, shape), KeptOnStage(stage, shape)});
    if (!options_.forward_only && !borrowed_) kept.host = std::max(kept.host, HostTapeBytes(stage, shape));
  }
  if (options_.stages.empty()) kept.device = std::exchange(kept.beside.stages[0].kept, {});
  return kept;
}

const ClusterWays::PhasePair& ClusterWays::BytesOf(Prefix& prefix) {
  if (!prefix.bytes) {
    prefix.bytes.emplace();
    const PrefixShape& shape = ShapeOf(prefix.way);
    if (!computes_prefixes()) return *prefix.bytes;
    for (const size_t s : candidates_) {
      const ByteShape& stage = options_.all_stages()[s];
      prefix.bytes->forward.RaiseTo(options_.forward_only ? ForwardPrefixBytes(stage, shape)
                                                          : PrefixForwardBytes(stage, shape));
      if (!options_.forward_only) prefix.bytes->backward.RaiseTo(PrefixBackwardBytes(stage, shape));
    }
  }
  return *prefix.bytes;
}

PhaseBytes ClusterWays::PhaseB(const Prefix& prefix, const RankCut& cut) const {
  const PhaseBytes& kept = kept_[prefix.kept].device;
  PhaseBytes bytes = cut.largest();
  bytes.hot_set += kept.hot_set;
  bytes.dormant_set += kept.dormant_set;
  return bytes;
}

// Whether Phases A and C fit.
bool ClusterWays::FitsWithoutWaves(Prefix& prefix) {
  const PhasePair& bytes = BytesOf(prefix);
  return std::max(bytes.forward.peak(), bytes.backward.peak()) <= options_.budget_bytes;
}

// Drops ways in blocks that keep what a whole one keeps which fits: in Phase B both are the same, and in the others
// blocks only add to the seconds.
void ClusterWays::DropOutdone() {
  size_t staying = 0;
  std::optional<size_t> kept_whole;
  for (size_t i = 0; i < prefixes_.size(); ++i) {
    Prefix& prefix = prefixes_[i];
    if (prefix.way.block_rows == 0) {
      if (FitsWithoutWaves(prefix)) kept_whole = prefix.kept;
    } else if (kept_whole == prefix.kept) {
      continue;
    }
    if (staying != i) prefixes_[staying] = prefix;
    ++staying;
  }
  prefixes_.erase(prefixes_.begin() + static_cast<ptrdiff_t>(staying), prefixes_.end());
}

int64_t ClusterWays::LeftToWaves(const Prefix& prefix) const {
  return options_.budget_bytes - kept_[prefix.kept].device.peak();
}

PhaseWork ClusterWays::WorkOf(size_t index, const WavesOfRanks& waves) {
  PhaseWork work;
  work.suffix = SlowestSuffix(SuffixPolicyOf(index), waves);
  if (!computes_prefixes()) return work;
  const PrefixShape& shape = ShapeOf(PrefixOf(index).way);
  if (shape.regather) work.suffix += sums_.Regather(shape, Rounds(waves), options_.forward_only);
  work.prefix_forward = sums_.PrefixForward(shape);
  if (!options_.forward_only) work.prefix_backward = sums_.PrefixBackward(shape);
  return work;
}

void ClusterWays::PricePrefixes() {
  if (std::exchange(priced_, true) || !computes_prefixes()) return;
  DropOutdone();
  for (Prefix& prefix : prefixes_) {
    const Work forward = sums_.PrefixForward(ShapeOf(prefix.way));
    prefix.forward_s = Seconds(forward, options_.rates);
    prefix.copy_out_s = CopySeconds(forward, options_.rates);
    if (shape_.regather) {
      prefix.round_s = Seconds(sums_.Regather(shape_, /*rounds=*/1, options_.forward_only), options_.rates);
    }
    if (options_.forward_only) continue;
    const Work backward = sums_.PrefixBackward(shape_);
    prefix.backward_s = Seconds(backward, options_.rates);
    prefix.copy_in_s = CopySeconds(backward, options_.rates);
  }
}

// Phase B of the rank that takes longest, of equally slow ones of the first.
Work ClusterWays::SlowestSuffix(v1::TapePolicy policy, const WavesOfRanks& waves) const {
  Work slowest;
  double slowest_s = -1;
  for (size_t rank = 0; rank < waves.size(); ++rank) {
    const Work work =
        options_.forward_only ? sums_.SuffixForwardOnly(waves[rank], rank) : sums_.Suffix(policy, waves[rank], rank);
    const double seconds = Seconds(work, options_.rates);
    if (seconds <= slowest_s) continue;
    slowest = work;
    slowest_s = seconds;
  }
  return slowest;
}

double ClusterWays::SuffixSeconds(v1::TapePolicy policy, const WavesOfRanks& waves) const {
  return Seconds(SlowestSuffix(policy, waves), options_.rates);
}

// `suffix_s`: Phase B's without gathering the prefixes again.
double ClusterWays::TotalSeconds(const Prefix& prefix, double suffix_s, const WavesOfRanks& waves) const {
  if (prefix.way.regather) suffix_s += static_cast<double>(Rounds(waves)) * prefix.round_s;
  return HideCopies({prefix.forward_s, suffix_s, prefix.backward_s}, prefix.copy_out_s, prefix.copy_in_s,
                    options_.rates)
      .total();
}

// Its waves; nullopt: it does not fit.
std::optional<RankCut> ClusterWays::Fit(size_t index) {
  ++ways_evaluated_;
  Prefix& prefix = PrefixOf(index);
  if (kept_[prefix.kept].host > options_.host_bytes_max()) return std::nullopt;
  if (!FitsWithoutWaves(prefix)) return std::nullopt;
  const int64_t left = LeftToWaves(prefix);
  RankCut cut = cuts_.Cut(SuffixPolicyOf(index), left, kept_[prefix.kept].beside);
  if (cut.largest().peak() > left) return std::nullopt;
  return cut;
}

ClusterWays::Evaluated ClusterWays::Priced(size_t index, RankCut cut) {
  PricePrefixes();
  const WavesOfRanks waves = cut.waves();
  const double suffix_s = SuffixSeconds(SuffixPolicyOf(index), waves);
  return {index, std::move(cut), TotalSeconds(PrefixOf(index), suffix_s, waves)};
}

// Returns Phase B's seconds for each suffix policy.
ClusterWays::OfPolicies<double> ClusterWays::SuffixSeconds(const WavesOfRanks& waves) const {
  OfPolicies<double> seconds;
  for (const v1::TapePolicy policy : suffix_policies_) seconds.push_back(SuffixSeconds(policy, waves));
  return seconds;
}

// Returns the fewest bytes of any cut for each suffix policy.
ClusterWays::OfPolicies<int64_t> ClusterWays::LeastWaveBytes(const BesideWave& beside) {
  OfPolicies<int64_t> bytes;
  for (const v1::TapePolicy policy : suffix_policies_) bytes.push_back(cuts_.LeastBytes(policy, beside));
  return bytes;
}

// All that may fit, and the fastest of all if bytes were no limit.
ClusterWays::Candidates ClusterWays::CandidatesThatMayFit(Candidate& fastest) {
  PricePrefixes();
  const bool alike = cuts_.least() == cuts_.fewest();
  const OfPolicies<double> fewest_s = SuffixSeconds(cuts_.fewest());
  const OfPolicies<double> least_s = alike ? fewest_s : SuffixSeconds(cuts_.least());
  Candidates candidates;
  fastest = {std::numeric_limits<double>::infinity(), 0};
  OfPolicies<int64_t> least_bytes;
  std::optional<size_t> bytes_beside;  // of which kept_ those are
  size_t index = 0;
  for (const Prefix& prefix : prefixes_) {
    const Kept& kept = kept_[prefix.kept];
    const bool host_takes = kept.host <= options_.host_bytes_max();
    const int64_t left = LeftToWaves(prefix);
    if (host_takes && std::exchange(bytes_beside, prefix.kept) != prefix.kept)
      least_bytes = LeastWaveBytes(kept.beside);
    for (size_t i = 0; i < suffix_policies_.size(); ++i, ++index) {
      const Candidate unlimited = {TotalSeconds(prefix, fewest_s[i], cuts_.fewest()), index};
      if (fastest > unlimited) fastest = unlimited;
      if (!host_takes || least_bytes[i] > left) continue;
      candidates.push_back(alike ? unlimited : Candidate{TotalSeconds(prefix, least_s[i], cuts_.least()), index});
    }
  }
  return candidates;
}

std::optional<MemoryChoice> ClusterWays::Fastest() {
  // The first keeps most: no work is made twice. Copies may make it slower than another.
  std::optional<Evaluated> best;
  if (options_.stopped()) return std::nullopt;
  if (const std::optional<RankCut> cut = Fit(0)) {
    if (cut->num_waves() == NumWaves(cuts_.fewest()) && !prefixes_[0].way.offload) {
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
    if (options_.stopped()) return std::nullopt;
    const Candidate next = candidates.front();
    if (best && next.seconds >= best->seconds) break;  // in the waves that fit it is no faster
    std::pop_heap(candidates.begin(), candidates.end(), std::greater<>());
    candidates.pop_back();
    const std::optional<RankCut> cut = Fit(next.index);
    if (!cut) continue;
    Evaluated evaluated = Priced(next.index, *cut);
    if (!best || evaluated.seconds < best->seconds) best = std::move(evaluated);
  }
  if (!best) return std::nullopt;
  MemoryChoice choice = Choice(best->index, best->cut);
  choice.cheapest = best->seconds <= fastest.seconds;
  if (!choice.cheapest) choice.wanted = Needs(fastest.index);
  return choice;
}

void ClusterWays::SetWaves(const RankCut& cut, MemoryChoice& choice) const {
  const auto of_all = static_cast<ptrdiff_t>(cuts_.num_cut());
  for (size_t rank = 0; rank < cut.of_ranks.size(); ++rank) {
    const std::vector<uint32_t>& sizes = cut.of_ranks[rank]->sizes;
    const auto first = sizes.begin() + (rank > 0 ? of_all : 0);  // the first rank's stand for those that all run
    choice.wave_sizes.insert(choice.wave_sizes.end(), first, sizes.end());
    if (cut.of_ranks.size() > 1) choice.wave_ranks.resize(choice.wave_sizes.size(), static_cast<uint32_t>(rank));
  }
  choice.cut_waves = cuts_.num_cut();
  choice.member_order = cuts_.MemberOrder();
}

MemoryChoice ClusterWays::Choice(size_t index, const RankCut& cut) {
  Prefix& prefix = PrefixOf(index);
  const PhasePair& bytes = BytesOf(prefix);
  const Kept& kept = kept_[prefix.kept];
  MemoryChoice choice;
  choice.way = {.prefix = AnsweredShape(prefix.way), .suffix_policy = SuffixPolicyOf(index)};
  if (borrowed_) choice.way.prefix = {};
  SetWaves(cut, choice);
  choice.prefix_forward = bytes.forward;
  choice.suffix = PhaseB(prefix, cut);
  choice.prefix_backward = bytes.backward;
  choice.host_bytes = kept.host;
  choice.peak_bytes = std::max({choice.prefix_forward.peak(), choice.suffix.peak(), choice.prefix_backward.peak()});
  // With pipeline stages what the budget leaves is other rounds' and clusters', and copies are waited for.
  if (prefix.way.offload && options_.stages.empty()) choice.headroom_bytes = options_.budget_bytes - choice.peak_bytes;
  choice.rounds_in_flight = options_.rounds_in_flight;
  choice.wave_rows = options_.wave_rows;
  choice.work = WorkOf(index, cut.waves());
  choice.seconds = Seconds(choice.work, options_.rates);
  choice.others = has_others_;
  return choice;
}

WayNeeds ClusterWays::Needs(size_t index) {
  Prefix& prefix = PrefixOf(index);
  const PhasePair& bytes = BytesOf(prefix);
  const Kept& kept = kept_[prefix.kept];
  const RankCut cut = cuts_.Cut(SuffixPolicyOf(index), kNoLimit, kept.beside);
  const int64_t suffix = PhaseB(prefix, cut).peak();
  return {.prefix = prefix.way,
          .suffix_policy = SuffixPolicyOf(index),
          .waves = cut.num_waves() - static_cast<int64_t>(cuts_.num_cut() * (cut.of_ranks.size() - 1)),
          .peak_bytes = std::max({bytes.forward.peak(), suffix, bytes.backward.peak()}),
          .host_bytes = kept.host};
}

std::vector<MemoryAlternative> ClusterWays::All() {
  std::vector<MemoryAlternative> ways;
  for (const Prefix& prefix : prefixes_) {
    for (const v1::TapePolicy policy : suffix_policies_) ways.push_back({AnsweredShape(prefix.way), policy});
  }
  return ways;
}

std::optional<MemoryChoice> ClusterWays::Evaluate(const MemoryAlternative& way) {
  const PrefixShape& asked = way.prefix;
  prefixes_ = {{.way = {asked.policy, asked.offload, asked.block_rows, asked.regather}}};
  kept_ = {KeptBy(prefixes_[0].way)};
  suffix_policies_ = {way.suffix_policy};
  has_others_ = false;
  priced_ = false;
  const std::optional<RankCut> cut = Fit(0);
  if (!cut) return std::nullopt;
  return Choice(0, *cut);
}

ClusterWays::Fewest ClusterWays::FewestBytes() {
  Fewest fewest;
  for (Prefix& prefix : prefixes_) {
    const PhasePair& bytes = BytesOf(prefix);
    const Kept& kept = kept_[prefix.kept];
    int64_t wave = kNoLimit;
    for (const v1::TapePolicy policy : suffix_policies_) wave = std::min(wave, cuts_.LeastBytes(policy, kept.beside));
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
