#include "tests/testing/draw_context.h"

#include <random>
#include <utility>
#include <vector>

namespace stemma::testing {

void DrawContext(const ContextDraw& draw, int num_ranks, v1::StepPlan& step) {
  if (draw.seed == 0 || num_ranks < 2) return;
  std::mt19937 random(draw.seed * 6151 + static_cast<uint32_t>(step.clusters_size()));
  for (v1::Cluster& cluster : *step.mutable_clusters()) {
    const bool split = cluster.has_owner_rank() || cluster.helper_ranks_size() > 0;
    cluster.set_regather_prefix(!split && cluster.prefix_groups_size() > 0 && random() % 2 == 0);
    v1::Cluster dealt;
    for (const v1::Wave& wave : cluster.waves()) {
      std::vector<v1::Wave> waves(static_cast<size_t>(num_ranks));
      for (const v1::WaveMember& member : wave.members()) {
        *waves[random() % static_cast<uint32_t>(num_ranks)].add_members() = member;
      }
      for (size_t rank = 0; rank < waves.size(); ++rank) {
        if (waves[rank].members_size() == 0) continue;
        waves[rank].set_layout(wave.layout());
        waves[rank].set_cp_rank(static_cast<uint32_t>(rank));
        *dealt.add_waves() = std::move(waves[rank]);
      }
    }
    cluster.mutable_waves()->Swap(dealt.mutable_waves());
  }
}

}  // namespace stemma::testing
