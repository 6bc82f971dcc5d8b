#include "tests/testing/draw_stages.h"

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "common/base/mesh.h"
#include "common/cost/cluster_facts.h"
#include "glog/logging.h"

namespace stemma::testing {
namespace {

struct Sequences {
  std::string forward, backward;
  std::vector<size_t> forward_places, backward_places;  // of each letter, the place of its cluster among the copy's
};

// Returns of each place whether its cluster is one of a group that copies share; with sharded parameters, which make
// all copies run the same places, whether any copy's is.
std::vector<bool> StandAlone(const v1::StepPlan& step, uint32_t copy) {
  std::vector<bool> alone;
  std::map<uint32_t, size_t> place;
  for (const v1::Cluster& cluster : step.clusters()) {
    if (cluster.dp_rank() != copy && !cluster.has_sweeps()) continue;
    const size_t at = place[cluster.dp_rank()]++;
    alone.resize(std::max(alone.size(), at + 1));
    if (IsSplit(cluster)) alone[at] = true;
  }
  return alone;
}

Sequences SequencesOf(const v1::StepPlan& step, uint32_t copy, uint32_t cp_ranks) {
  Sequences sequences;
  size_t place = 0;
  for (const v1::Cluster& cluster : step.clusters()) {
    if (cluster.dp_rank() != copy) continue;
    std::vector<size_t> waves(cp_ranks);
    size_t cut = 0;  // of all ranks
    for (const v1::Wave& wave : cluster.waves()) ++(wave.cut_rows() ? cut : waves.at(wave.cp_rank()));
    const size_t most = cut + *std::max_element(waves.begin(), waves.end());
    const size_t rounds = std::max<size_t>(most, cluster.sweeps().rounds());
    const bool has_prefix = cluster.prefix_groups_size() > 0 || cluster.sweeps().prefix_blocks() > 0;
    sequences.forward += (has_prefix ? "A" : "") + std::string(rounds, 'F');
    sequences.backward += std::string(rounds, 'B') + (has_prefix ? "C" : "");
    sequences.forward_places.resize(sequences.forward.size(), place);
    sequences.backward_places.resize(sequences.backward.size(), place++);
  }
  return sequences;
}

// Runs the stages beside each other, one operation at a time of one that can.
class StagesDrawn {
 public:
  StagesDrawn(const Sequences& sequences, std::vector<bool> stand_alone, size_t stages, uint32_t seed)
      : sequences_(sequences),
        stand_alone_(std::move(stand_alone)),
        random_(seed),
        first_(seed == 0),
        forwards_(stages),
        backwards_(stages),
        orders_(stages) {}

  std::vector<std::string> Run() {
    for (;;) {
      std::vector<std::pair<size_t, bool>> ready;  // stage, whether it is a backward
      for (size_t stage = 0; stage < orders_.size(); ++stage) {
        if (CanRunBackward(stage)) ready.emplace_back(stage, true);
        if (CanRunForward(stage)) ready.emplace_back(stage, false);
      }
      if (ready.empty()) break;
      const auto [stage, backward] = ready[first_ ? 0 : random_() % ready.size()];
      const std::string& sequence = backward ? sequences_.backward : sequences_.forward;
      orders_[stage] += sequence[(backward ? backwards_ : forwards_)[stage]++];
    }
    for (const size_t ran : backwards_) CHECK_EQ(ran, sequences_.backward.size());
    return orders_;
  }

 private:
  static size_t Waves(const std::string& sequence, size_t ran) {
    return static_cast<size_t>(std::count_if(sequence.begin(), sequence.begin() + static_cast<std::ptrdiff_t>(ran),
                                             [](char letter) { return letter == 'F' || letter == 'B'; }));
  }

  bool CanRunForward(size_t stage) const {
    const size_t next = forwards_[stage];
    if (next == sequences_.forward.size() || (stage > 0 && forwards_[stage - 1] <= next)) return false;
    const size_t own = sequences_.forward_places[next], earliest = sequences_.backward_places[backwards_[stage]];
    return own == earliest || (!stand_alone_[own] && !stand_alone_[earliest]);
  }

  bool CanRunBackward(size_t stage) const {
    const size_t next = backwards_[stage];
    if (next == sequences_.backward.size()) return false;
    if (stage + 1 < orders_.size() && backwards_[stage + 1] <= next) return false;
    const bool is_wave = sequences_.backward[next] == 'B';
    return !is_wave || Waves(sequences_.forward, forwards_[stage]) > Waves(sequences_.backward, next);
  }

  const Sequences& sequences_;
  const std::vector<bool> stand_alone_;  // by place
  std::mt19937 random_;
  const bool first_;
  std::vector<size_t> forwards_, backwards_;  // that each stage has run
  std::vector<std::string> orders_;
};

}  // namespace

void DrawStages(uint32_t seed, const v1::Mesh& mesh, v1::StepPlan& step) {
  if (PpSize(mesh) == 1) return;
  step.clear_copies();
  for (uint32_t copy = 0; copy < DpSize(mesh); ++copy) {
    const Sequences sequences = SequencesOf(step, copy, CpSize(mesh));
    if (sequences.forward.empty()) continue;
    v1::CopyStages& stages = *step.add_copies();
    stages.set_dp_rank(copy);
    // Copies that share their sweeps have one order.
    const bool shared = step.clusters(0).has_sweeps();
    const uint32_t own_seed = seed == 0 ? 0 : seed * 7919 + (shared ? 0 : copy);
    StagesDrawn drawn(sequences, StandAlone(step, copy), PpSize(mesh), own_seed);
    for (std::string& order : drawn.Run()) stages.add_orders(std::move(order));
  }
}

}  // namespace stemma::testing
