#include "tests/testing/draw_context.h"

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

#include "common/cost/cluster_facts.h"

namespace stemma::testing {
namespace {

// Whether a member's rows can be cut: it is a suffix, of two rows for each rank at least.
bool CanBeCut(const v1::WaveMember& member, const v1::Cluster& cluster, const ContextGroups& groups, int num_ranks) {
  if (member.group() >= groups.size()) return false;
  const ContextGroup& group = groups[member.group()];
  const auto& prefixes = cluster.prefix_groups();
  const bool reuses = std::find(prefixes.begin(), prefixes.end(), member.group()) != prefixes.end();
  return (reuses || group.prefix_rows == 0) && group.response_rows[member.rollout()] >= 2 * num_ranks;
}

}  // namespace

void DrawContext(const ContextDraw& draw, int num_ranks, const ContextGroups& groups, v1::StepPlan& step) {
  if (draw.seed == 0 || num_ranks < 2) return;
  std::mt19937 random(draw.seed * 6151 + static_cast<uint32_t>(step.clusters_size()));
  for (v1::Cluster& cluster : *step.mutable_clusters()) {
    cluster.set_regather_prefix(!IsSplit(cluster) && cluster.prefix_groups_size() > 0 && random() % 2 == 0);
    v1::Cluster cut, dealt;
    for (const v1::Wave& wave : cluster.waves()) {
      std::vector<v1::Wave> waves(static_cast<size_t>(num_ranks));
      for (const v1::WaveMember& member : wave.members()) {
        if (CanBeCut(member, cluster, groups, num_ranks) && (draw.cuts_all || random() % 3 == 0)) {
          v1::Wave& alone = *cut.add_waves();
          alone.set_layout(v1::ONE_BY_ONE);
          alone.set_cut_rows(true);
          *alone.add_members() = member;
          continue;
        }
        *waves[random() % static_cast<uint32_t>(num_ranks)].add_members() = member;
      }
      for (size_t rank = 0; rank < waves.size(); ++rank) {
        if (waves[rank].members_size() == 0) continue;
        waves[rank].set_layout(wave.layout());
        waves[rank].set_cp_rank(static_cast<uint32_t>(rank));
        *dealt.add_waves() = std::move(waves[rank]);
      }
    }
    cut.mutable_waves()->MergeFrom(dealt.waves());
    cluster.mutable_waves()->Swap(cut.mutable_waves());
  }
}

}  // namespace stemma::testing
