// What a copy of the model takes on one of its pipeline stages, where copies share an order: by its own clusters and
// its own messages, apart from the planner, which counts by what the copies have most of.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "server/planner/stage_orders.h"
#include "stemma/v1/plan.pb.h"

namespace stemma::worker {

// Returns what a copy takes at most on a stage, in the order that all copies share: its own clusters, place by place.
inline int64_t PeakOf(const std::string& order, const std::vector<v1::ParameterSweeps>& places,
                      const std::vector<server::StageCluster>& own, size_t stage) {
  std::map<char, size_t> place;
  std::map<char, uint32_t> round;
  int64_t kept = 0, peak = 0;
  std::vector<int64_t> sent = {0, 0};  // to the stage before; the last two are there
  for (const char letter : order) {
    size_t& at = place[letter];
    const bool is_wave = letter == 'F' || letter == 'B', is_forward = letter == 'A' || letter == 'F';
    while (is_wave ? round[letter] == places[at].rounds() : places[at].prefix_blocks() == 0) {
      ++at;
      round[letter] = 0;
    }
    const server::StageCluster& cluster = own[at];
    const size_t number = is_wave ? round[letter]++ : at++;
    const bool runs = is_wave ? number < cluster.rounds.size() : !cluster.prefixes.empty();
    if (!runs) continue;
    const server::StageCost& cost = (is_wave ? cluster.rounds[number] : cluster.prefixes)[stage];
    if (!is_forward) kept -= cost.kept_bytes;
    // Prefixes' outputs are gone from their cluster's first backward on.
    if (letter == 'C') kept += cost.output_bytes;
    if (letter == 'B' && number == 0 && !cluster.prefixes.empty()) kept -= cluster.prefixes[stage].output_bytes;
    const int64_t bytes = kept + (is_forward ? cost.forward_bytes : cost.backward_bytes);
    for (int64_t i = 0; i < (is_forward ? 1 : std::max<int64_t>(cost.messages, 1)); ++i) {
      peak = std::max(peak, bytes + sent[sent.size() - 1] + sent[sent.size() - 2]);
      if (!is_forward && cost.messages > 0) sent.push_back(cost.message_bytes);
    }
    if (is_forward) kept += cost.kept_bytes;
  }
  return peak;
}

}  // namespace stemma::worker
