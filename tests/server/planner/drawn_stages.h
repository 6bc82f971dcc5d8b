// Drawn pipelines for the tests of server/planner/stage_orders.h, and a replay of orders that knows nothing of how they
// were found.
#pragma once

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "server/planner/stage_orders.h"
#include "tests/testing/draw.h"

namespace stemma::testing {

using server::StageCluster;
using server::StageCost;
using server::StageCosts;
using server::StageQuestion;

// Seconds are whole multiples of a sixteenth: sums of them are exact.
inline double DrawSeconds(Draw& draw, int64_t most) { return static_cast<double>(draw.Between(1, 16 * most)) / 16; }

// Draws what is kept as a part of either peak.
inline StageCost DrawCost(Draw& draw, int64_t most_s) {
  StageCost cost = {.forward_s = DrawSeconds(draw, most_s), .backward_s = DrawSeconds(draw, 2 * most_s)};
  cost.kept_bytes = draw.Between(0, 20);
  cost.forward_bytes = cost.kept_bytes + draw.Between(0, 10);
  cost.backward_bytes = cost.kept_bytes + draw.Between(0, 20);
  cost.host_bytes = draw.Between(0, 10);
  return cost;
}

// Draws of what prefixes keep the part that is their output.
inline void DrawOutputs(Draw& draw, StageCosts& prefixes) {
  for (StageCost& cost : prefixes) cost.output_bytes = draw.Between(0, cost.kept_bytes);
}

inline StageCosts DrawCosts(Draw& draw, size_t stages, int64_t most_s) {
  StageCosts costs;
  for (size_t s = 0; s < stages; ++s) costs.push_back(DrawCost(draw, most_s));
  return costs;
}

inline StageQuestion DrawStages(Draw& draw, size_t stages, int64_t clusters_max, int64_t rounds_max) {
  StageQuestion question = {.stages = stages, .clusters = {}};
  question.clusters.resize(static_cast<size_t>(draw.Between(1, clusters_max)));
  for (StageCluster& cluster : question.clusters) {
    if (draw.Chance(70)) cluster.prefixes = DrawCosts(draw, stages, 4);
    DrawOutputs(draw, cluster.prefixes);
    for (int64_t r = draw.Between(1, rounds_max); r > 0; --r) cluster.rounds.push_back(DrawCosts(draw, stages, 2));
  }
  return question;
}

// Returns of each letter of a stage's order, which is complete, the cluster that it is of.
inline std::vector<size_t> ClustersOf(const StageQuestion& question, const std::string& letters) {
  std::vector<size_t> forward, backward;
  for (size_t c = 0; c < question.clusters.size(); ++c) {
    const size_t count = question.clusters[c].rounds.size() + (question.clusters[c].prefixes.empty() ? 0 : 1);
    forward.insert(forward.end(), count, c);
    backward.insert(backward.end(), count, c);
  }
  std::vector<size_t> clusters;
  size_t forwards = 0, backwards = 0;
  for (const char letter : letters) {
    const bool is_forward = letter == 'A' || letter == 'F';
    clusters.push_back(is_forward ? forward.at(forwards++) : backward.at(backwards++));
  }
  return clusters;
}

// Tells whether a stage runs nothing else from the first operation of a cluster to its last.
inline bool StandsAlone(const std::vector<size_t>& clusters, size_t cluster) {
  const auto first = std::find(clusters.begin(), clusters.end(), cluster);
  const auto last = std::find(clusters.rbegin(), clusters.rend(), cluster).base();
  return std::all_of(first, last, [&](size_t other) { return other == cluster; });
}

// Returns the bytes that each stage needs where one round at a time is in flight, of one cluster.
inline int64_t LeastBudget(const StageQuestion& question) {
  int64_t least = 0;
  for (size_t s = 0; s < question.stages; ++s) {
    for (const StageCluster& cluster : question.clusters) {
      const StageCost prefixes = cluster.prefixes.empty() ? StageCost{} : cluster.prefixes[s];
      least = std::max({least, prefixes.forward_bytes, prefixes.backward_bytes});
      for (const StageCosts& round : cluster.rounds) {
        least = std::max(least, prefixes.kept_bytes + std::max(round[s].forward_bytes, round[s].backward_bytes));
      }
    }
  }
  return least;
}

// The same of host memory.
inline int64_t LeastHostBudget(const StageQuestion& question) {
  int64_t least = 0;
  for (size_t s = 0; s < question.stages; ++s) {
    for (const StageCluster& cluster : question.clusters) {
      const int64_t prefixes = cluster.prefixes.empty() ? 0 : cluster.prefixes[s].host_bytes;
      for (const StageCosts& round : cluster.rounds) least = std::max(least, prefixes + round[s].host_bytes);
    }
  }
  return least;
}

// What a stage's order comes to when it is run as workers do: each operation begins when the one before it has ended
// and its input is there.
struct Replayed {
  std::string problem;  // "": the orders are complete and legal
  double end_s = 0;
  std::vector<std::vector<std::pair<double, double>>> times;  // of each stage's operations
  std::vector<int64_t> peak_bytes, host_peak_bytes;
  std::vector<size_t> rounds_in_flight;  // the most of each stage
};

class Replay {
 public:
  explicit Replay(const StageQuestion& question) : question_(question) {
    for (size_t c = 0; c < question.clusters.size(); ++c) {
      const StageCluster& cluster = question.clusters[c];
      if (!cluster.prefixes.empty()) forward_.push_back({'A', &cluster.prefixes});
      for (const StageCosts& round : cluster.rounds) forward_.push_back({'F', &round});
      for (const StageCosts& round : cluster.rounds) backward_.push_back({'B', &round});
      if (cluster.prefixes.empty()) continue;
      backward_.push_back({'C', &cluster.prefixes});
      prefixes_of_[&cluster.rounds.front()] = &cluster.prefixes;
    }
  }

  const auto& forward() const { return forward_; }
  const auto& backward() const { return backward_; }

  Replayed Run(const std::vector<std::string>& orders) const {
    const size_t stages = question_.stages;
    Replayed result;
    result.times.resize(stages);
    result.peak_bytes.resize(stages);
    result.host_peak_bytes.resize(stages);
    result.rounds_in_flight.resize(stages);
    if (orders.size() != stages) result.problem = "not an order for each stage";
    std::vector<State> states(stages);
    for (bool moved = true; moved && result.problem.empty();) {
      moved = false;
      for (size_t s = 0; s < stages; ++s) {
        while (result.problem.empty() && Advance(orders, s, states, result)) moved = true;
      }
    }
    for (size_t s = 0; s < stages && result.problem.empty(); ++s) {
      if (states[s].next != forward_.size() + backward_.size()) result.problem = "it stands still";
      result.end_s = std::max(result.end_s, states[s].free_s);
    }
    return result;
  }

 private:
  using Sequence = std::vector<std::pair<char, const StageCosts*>>;
  struct State {
    size_t next = 0, forwards = 0, backwards = 0;
    double free_s = 0;
    std::map<const StageCosts*, double> forward_end_s, backward_end_s;
    int64_t kept_bytes = 0, host_bytes = 0;
    std::vector<int64_t> sent;  // all messages, of which the last two are there
    size_t rounds = 0;

    int64_t InFlight() const {
      const size_t first = sent.size() - std::min<size_t>(sent.size(), 2);
      return std::accumulate(sent.begin() + static_cast<ptrdiff_t>(first), sent.end(), int64_t{0});
    }
  };

  // Runs the stage's next operation if its input is there.
  bool Advance(const std::vector<std::string>& orders, size_t s, std::vector<State>& states, Replayed& result) const {
    State& state = states[s];
    if (state.next == orders[s].size()) return false;
    const char letter = orders[s][state.next];
    const bool forward = letter == 'A' || letter == 'F';
    const Sequence& sequence = forward ? forward_ : backward_;
    const size_t at = forward ? state.forwards : state.backwards;
    if (at == sequence.size() || sequence[at].first != letter) {
      result.problem = "an operation that is not the next of its sequence";
      return false;
    }
    const StageCosts* costs = sequence[at].second;
    double input_s = 0;
    if (!forward && !state.forward_end_s.contains(costs)) {
      result.problem = "a backward before its forward";
      return false;
    }
    if (forward ? s > 0 : s + 1 < orders.size()) {
      const State& from = states[forward ? s - 1 : s + 1];
      const auto& ends = forward ? from.forward_end_s : from.backward_end_s;
      const auto end = ends.find(costs);
      if (end == ends.end()) return false;
      input_s = end->second;
    }
    Run(letter, s, costs, std::max(state.free_s, input_s), state, result);
    return true;
  }

  void Run(char letter, size_t s, const StageCosts* costs, double begin_s, State& state, Replayed& result) const {
    const bool forward = letter == 'A' || letter == 'F', is_round = letter == 'F' || letter == 'B';
    const StageCost& cost = (*costs)[s];
    const double end_s = begin_s + (forward ? cost.forward_s : cost.backward_s);
    if (!forward) state.kept_bytes -= cost.kept_bytes;
    // Prefixes' outputs are gone from their cluster's first backward on.
    if (letter == 'C') state.kept_bytes += cost.output_bytes;
    if (letter == 'B' && prefixes_of_.contains(costs)) state.kept_bytes -= (*prefixes_of_.at(costs))[s].output_bytes;
    const int64_t bytes = state.kept_bytes + (forward ? cost.forward_bytes : cost.backward_bytes);
    result.peak_bytes[s] = std::max(result.peak_bytes[s], bytes + state.InFlight());
    for (int64_t i = 0; i < (forward ? 0 : cost.messages); ++i) {
      result.peak_bytes[s] = std::max(result.peak_bytes[s], bytes + state.InFlight());
      state.sent.push_back(cost.message_bytes);
    }
    if (forward) state.kept_bytes += cost.kept_bytes;
    if (forward) state.host_bytes += cost.host_bytes;
    result.host_peak_bytes[s] = std::max(result.host_peak_bytes[s], state.host_bytes);
    if (!forward) state.host_bytes -= cost.host_bytes;
    if (is_round) state.rounds += forward ? 1 : static_cast<size_t>(-1);
    result.rounds_in_flight[s] = std::max(result.rounds_in_flight[s], state.rounds);
    result.times[s].emplace_back(begin_s, end_s);
    (forward ? state.forward_end_s : state.backward_end_s)[costs] = end_s;
    ++(forward ? state.forwards : state.backwards);
    ++state.next;
    state.free_s = end_s;
  }

  const StageQuestion& question_;
  Sequence forward_, backward_;
  std::map<const StageCosts*, const StageCosts*> prefixes_of_;  // by the first round of a cluster
};

}  // namespace stemma::testing
