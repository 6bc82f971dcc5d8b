#include "tests/testing/draw_splits.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

namespace stemma::testing {
namespace {

v1::TapePolicy DrawPolicy(std::mt19937& random, int policies) {
  return static_cast<v1::TapePolicy>(v1::S0 + static_cast<int>(random() % static_cast<uint32_t>(policies)));
}

// The ranks of a group, the owner first.
std::vector<uint32_t> DrawRanks(const SplitDraw& draw, int num_ranks, int members, std::mt19937& random) {
  const auto most = static_cast<uint32_t>(std::min(num_ranks, members));
  std::vector<uint32_t> ranks(static_cast<size_t>(num_ranks));
  std::iota(ranks.begin(), ranks.end(), 0);
  std::shuffle(ranks.begin(), ranks.end(), random);
  const uint32_t count = draw.ranks > 0 ? std::min(draw.ranks, most) : 1 + static_cast<uint32_t>(random() % most);
  ranks.resize(count);
  std::sort(ranks.begin() + 1, ranks.end());
  return ranks;
}

// The owner's cluster and each helper's.
std::vector<v1::Cluster> SplitOne(const SplitDraw& draw, int num_ranks, const v1::Cluster& whole) {
  int members = 0;
  for (const v1::Wave& wave : whole.waves()) members += wave.members_size();
  std::mt19937 random(draw.seed * 7919 + (whole.prefix_groups_size() > 0 ? whole.prefix_groups(0) : 0));
  if (whole.prefix_groups_size() != 1 || members < 2) return {whole};
  const std::vector<uint32_t> ranks = DrawRanks(draw, num_ranks, members, random);
  if (ranks.size() < 2) return {whole};
  std::vector<v1::Cluster> parts(ranks.size(), whole);
  for (size_t i = 0; i < parts.size(); ++i) {
    parts[i].clear_waves();
    parts[i].set_dp_rank(ranks[i]);
    parts[i].clear_regather_prefix();
    if (draw.policies) parts[i].set_suffix_policy(DrawPolicy(random, 5));
    if (i > 0) {
      parts[i].clear_prefix_policy();
      parts[i].clear_prefix_block_rows();
      parts[i].clear_offload_prefix();
      parts[i].clear_offload_headroom_bytes();
      parts[i].set_owner_rank(ranks[0]);
      parts[0].add_helper_ranks(ranks[i]);
    } else if (draw.policies) {
      parts[0].set_prefix_policy(DrawPolicy(random, 6));
      parts[0].set_prefix_block_rows(random() % 2 == 0 ? 0 : 1 + static_cast<uint32_t>(random() % 9));
      parts[0].set_offload_prefix(random() % 3 == 0);
    }
  }
  size_t next = 0;
  for (const v1::Wave& wave : whole.waves()) {
    std::vector<v1::Wave> waves(parts.size());
    for (const v1::WaveMember& member : wave.members()) {
      const size_t part = next < parts.size() ? next : random() % parts.size();  // each has one at least
      *waves[part].add_members() = member;
      ++next;
    }
    for (size_t i = 0; i < parts.size(); ++i) {
      waves[i].set_layout(wave.layout());
      if (waves[i].members_size() > 0) *parts[i].add_waves() = std::move(waves[i]);
    }
  }
  return parts;
}

}  // namespace

// One cluster for each key of groups: the same waves, cut where the key changes.
void SplitClusters(v1::StepPlan& step, const std::function<int64_t(uint32_t group)>& key_of) {
  v1::StepPlan split;
  for (const v1::Cluster& cluster : step.clusters()) {
    v1::Cluster policies = cluster;
    policies.clear_prefix_groups();
    policies.clear_prefix_rollouts();
    policies.clear_waves();
    std::map<int64_t, v1::Cluster> by_key;
    for (const v1::Wave& wave : cluster.waves()) {
      for (const v1::WaveMember& member : wave.members()) by_key[key_of(member.group())] = policies;
    }
    for (int i = 0; i < cluster.prefix_groups_size(); ++i) {
      v1::Cluster& part = by_key[key_of(cluster.prefix_groups(i))];
      part.add_prefix_groups(cluster.prefix_groups(i));
      part.add_prefix_rollouts(cluster.prefix_rollouts(i));
    }
    for (const v1::Wave& wave : cluster.waves()) {
      std::map<int64_t, v1::Wave> parts;
      for (const v1::WaveMember& member : wave.members()) *parts[key_of(member.group())].add_members() = member;
      for (auto& [key, part] : parts) {
        part.set_layout(wave.layout());
        *by_key[key].add_waves() = std::move(part);
      }
    }
    for (auto& [key, part] : by_key) *split.add_clusters() = std::move(part);
  }
  step.mutable_clusters()->Swap(split.mutable_clusters());
}

void DrawSplits(const SplitDraw& draw, int num_ranks, v1::StepPlan& step) {
  if (draw.seed == 0 || num_ranks < 2) return;
  SplitClusters(step, [](uint32_t group) { return group; });
  v1::StepPlan drawn;
  for (const v1::Cluster& cluster : step.clusters()) {
    for (v1::Cluster& part : SplitOne(draw, num_ranks, cluster)) *drawn.add_clusters() = std::move(part);
  }
  step.mutable_clusters()->Swap(drawn.mutable_clusters());
}

}  // namespace stemma::testing
