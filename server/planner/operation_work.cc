#include "server/planner/operation_work.h"

#include "server/planner/wave_cuts.h"

namespace stemma::server {

ClusterOperations::ClusterOperations(const std::vector<PlannerGroup>& groups, const v1::Cluster& cluster, int64_t cp,
                                     bool forward_only)
    : groups_(groups), cluster_(cluster), cp_(cp), forward_only_(forward_only) {
  prefix_ = {.block_rows = cluster.prefix_block_rows(),
             .policy = cluster.prefix_policy(),
             .offload = cluster.offload_prefix(),
             .regather = cluster.regather_prefix()};
  for (const uint32_t g : cluster.prefix_groups()) {
    places_[g] = static_cast<int64_t>(prefixes_.prefix_rows.size());
    prefixes_.prefix_rows.push_back(groups[g].prompt_tokens - 1);
  }
  prefix_.lengths = prefixes_.prefix_rows;
  prefix_.rows = PackedPrefixRows(prefixes_);
}

ClusterShape ClusterOperations::MembersOf(const v1::Wave& wave) const {
  ClusterShape members;
  for (const v1::WaveMember& member : wave.members()) members.members.push_back(MemberOf(member, wave.cut_rows()));
  return members;
}

WaveShape ClusterOperations::ShapeOf(const v1::Wave& wave, const ClusterShape& members) const {
  return WaveOf(members.members, wave.layout(), cluster_.suffix_policy());
}

PrefixWork ClusterOperations::Prefixes(const ByteShape& stage) const {
  const ClusterWorkSums sums(stage, prefixes_);
  PrefixWork work = {.forward = sums.PrefixForward(prefix_), .backward = {}};
  if (!forward_only_) work.backward = sums.PrefixBackward(prefix_);
  return work;
}

WaveWork ClusterOperations::Wave(const ByteShape& stage, const ClusterShape& members) const {
  const ClusterWorkSums sums(stage, members);
  WavePasses one;
  AddWave(stage, members.members, one);
  if (forward_only_) return {.forward = sums.SuffixForwardOnly(one), .both = {}};
  return {.forward = sums.SuffixForwardOfStep(one), .both = sums.Suffix(cluster_.suffix_policy(), one)};
}

WaveWork ClusterOperations::Regather(const ByteShape& stage) const {
  if (!prefix_.regather) return {};
  const ClusterWorkSums sums(stage, prefixes_);
  WaveWork work = {.forward = sums.Regather(prefix_, /*rounds=*/1, /*forward_only=*/true), .both = {}};
  if (!forward_only_) work.both = sums.Regather(prefix_, /*rounds=*/1, /*forward_only=*/false);
  return work;
}

MemberShape ClusterOperations::MemberOf(const v1::WaveMember& member, bool is_cut) const {
  const PlannerGroup& group = groups_[member.group()];
  const auto place = places_.find(member.group());
  return {.rows = group.rollouts[member.rollout()].response_tokens,
          .prefix_rows = group.prompt_tokens - 1,
          .dense = place == places_.end(),
          .cut_ranks = is_cut ? static_cast<int32_t>(cp_) : 1,
          .prefix = place == places_.end() ? 0 : place->second};
}

}  // namespace stemma::server
