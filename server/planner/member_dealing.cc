#include "server/planner/member_dealing.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <queue>
#include <utility>

#include "common/cost/flops.h"
#include "glog/logging.h"

namespace stemma::server {

double MemberFlops(const ModelConfig& config, const MemberShape& member) {
  const Flops flops = member.dense ? DenseFlops(config, member.prefix_rows, member.rows)
                                   : SuffixFlops(config, member.prefix_rows, member.rows);
  return flops.forward;
}

std::vector<uint32_t> DealMembers(const ModelConfig& config, const std::vector<MemberShape>& members, int64_t ranks) {
  CHECK_GE(ranks, 1);
  std::vector<double> flops;
  flops.reserve(members.size());
  for (const MemberShape& member : members) flops.push_back(MemberFlops(config, member));
  std::vector<size_t> order(members.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return flops[a] > flops[b]; });

  using Entry = std::pair<double, uint32_t>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> emptiest;
  for (uint32_t rank = 0; rank < static_cast<uint32_t>(ranks); ++rank) emptiest.emplace(0, rank);
  std::vector<uint32_t> dealt(members.size());
  for (const size_t i : order) {
    if (members[i].is_cut()) continue;
    const auto [load, rank] = emptiest.top();
    emptiest.pop();
    dealt[i] = rank;
    emptiest.emplace(load + flops[i], rank);
  }
  return dealt;
}

double DealtImbalance(const ModelConfig& config, const std::vector<MemberShape>& members, int64_t ranks) {
  const std::vector<uint32_t> dealt = DealMembers(config, members, ranks);
  std::vector<double> loads(static_cast<size_t>(ranks));
  double even = 0;
  for (size_t i = 0; i < members.size(); ++i) {
    const double flops = MemberFlops(config, members[i]), share = flops / static_cast<double>(ranks);
    even += share;
    if (!members[i].is_cut()) loads[dealt[i]] += flops;
    for (double& load : loads) load += members[i].is_cut() ? share : 0;
  }
  return *std::max_element(loads.begin(), loads.end()) / even;
}

}  // namespace stemma::server
