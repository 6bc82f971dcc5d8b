#include "worker/schedule/stage_orders.h"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/cost/cluster_facts.h"

namespace stemma::worker {
namespace {

// The sequences of a copy, letter by letter, and which cluster each letter is of.
struct CopySequences {
  std::string forward, backward;
  std::vector<int> forward_clusters, backward_clusters;

  void AddForward(char letter, size_t count, int cluster) {
    forward.append(count, letter);
    forward_clusters.insert(forward_clusters.end(), count, cluster);
  }
  void AddBackward(char letter, size_t count, int cluster) {
    backward.append(count, letter);
    backward_clusters.insert(backward_clusters.end(), count, cluster);
  }
};

CopySequences SequencesOf(const v1::StepPlan& step, const RankSizes& sizes) {
  CopySequences sequences;
  for (int c = 0; c < step.clusters_size(); ++c) {
    const v1::Cluster& cluster = step.clusters(c);
    const auto own = static_cast<size_t>(RoundsOfWaves(cluster, sizes.cp_ranks));
    const size_t rounds = std::max(own, static_cast<size_t>(cluster.sweeps().rounds()));
    const bool has_prefix = cluster.prefix_groups_size() > 0 || cluster.sweeps().prefix_blocks() > 0;
    sequences.AddForward('A', has_prefix ? 1 : 0, c);
    sequences.AddForward('F', rounds, c);
    sequences.AddBackward('B', rounds, c);
    sequences.AddBackward('C', has_prefix ? 1 : 0, c);
  }
  return sequences;
}

bool IsForward(char letter) { return letter == 'A' || letter == 'F'; }

// Returns the letters of an order that are of one of the sequences.
std::string PartOf(const std::string& order, bool forward) {
  std::string part;
  std::copy_if(order.begin(), order.end(), std::back_inserter(part),
               [&](char letter) { return IsForward(letter) == forward; });
  return part;
}

// Runs the orders of all stages against each other; returns what is wrong, empty: nothing.
class StageRun {
 public:
  explicit StageRun(const v1::CopyStages& copy) : copy_(copy), stages_(static_cast<size_t>(copy.orders_size())) {}

  std::string Run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t stage = 0; stage < stages_.size(); ++stage) {
        for (; CanRun(stage); moved = true) Step(stage);
      }
    }
    std::string waits;
    for (size_t stage = 0; stage < stages_.size(); ++stage) {
      if (stages_[stage].next == Order(stage).size()) continue;
      absl::StrAppend(&waits, waits.empty() ? "" : ", ", "stage ", stage, " at operation ", stages_[stage].next, ", ",
                      Order(stage).substr(stages_[stage].next, 1));
    }
    return waits.empty() ? "" : absl::StrCat("the stages wait for each other for ever: ", waits);
  }

 private:
  // How far a stage is: in its order, and in the sequences.
  struct Stage {
    size_t next = 0, forwards = 0, waves_forward = 0, backwards = 0, waves_backward = 0;
    size_t prefixes() const { return forwards - waves_forward; }             // whose Phase A ran
    size_t prefixes_backward() const { return backwards - waves_backward; }  // whose Phase C ran
  };

  const std::string& Order(size_t stage) const { return copy_.orders(static_cast<int>(stage)); }

  bool CanRun(size_t stage) const {
    const Stage& own = stages_[stage];
    if (own.next == Order(stage).size()) return false;
    const char letter = Order(stage)[own.next];
    if (IsForward(letter)) return stage == 0 || stages_[stage - 1].forwards > own.forwards;
    // Its forward comes later.
    if (letter == 'B' && own.waves_forward == own.waves_backward) return false;
    if (letter == 'C' && own.prefixes() == own.prefixes_backward()) return false;
    return stage + 1 == stages_.size() || stages_[stage + 1].backwards > own.backwards;
  }

  void Step(size_t stage) {
    Stage& own = stages_[stage];
    const char letter = Order(stage)[own.next++];
    ++(IsForward(letter) ? own.forwards : own.backwards);
    if (letter == 'F') ++own.waves_forward;
    if (letter == 'B') ++own.waves_backward;
  }

  const v1::CopyStages& copy_;
  std::vector<Stage> stages_;
};

// Returns which split group's cluster an order, which is complete, runs between operations of another one; -1: none.
// Stages of two copies would come to its exchanges in orders of their own, and wait for each other for ever.
int SplitClusterNotAlone(const v1::StepPlan& step, const std::string& order, const CopySequences& sequences) {
  std::vector<int> left(static_cast<size_t>(step.clusters_size()));  // letters
  for (const int cluster : sequences.forward_clusters) ++left[static_cast<size_t>(cluster)];
  for (const int cluster : sequences.backward_clusters) ++left[static_cast<size_t>(cluster)];
  size_t forwards = 0, backwards = 0;
  std::set<int> begun;  // and not ended
  for (const char letter : order) {
    const int cluster =
        IsForward(letter) ? sequences.forward_clusters[forwards++] : sequences.backward_clusters[backwards++];
    if (!begun.contains(cluster) && !begun.empty()) {
      if (IsSplit(step.clusters(cluster))) return cluster;
      if (IsSplit(step.clusters(*begun.begin()))) return *begun.begin();
    }
    begun.insert(cluster);
    if (--left[static_cast<size_t>(cluster)] == 0) begun.erase(cluster);
  }
  return -1;
}

std::string OrdersProblem(const v1::StepPlan& step, const v1::CopyStages& copy, const CopySequences& sequences,
                          const RankSizes& sizes) {
  if (copy.orders_size() != sizes.stages) {
    return absl::StrCat("it has ", copy.orders_size(), " orders: there are ", sizes.stages, " stages");
  }
  for (int stage = 0; stage < sizes.stages; ++stage) {
    for (const bool forward : {true, false}) {
      const std::string& expected = forward ? sequences.forward : sequences.backward;
      if (PartOf(copy.orders(stage), forward) == expected) continue;
      return absl::StrCat("stage ", stage, "'s order does not run each ", forward ? "A and F" : "B and C",
                          " of the copy's clusters once, in their order");
    }
    const int split = SplitClusterNotAlone(step, copy.orders(stage), sequences);
    if (split >= 0) {
      return absl::StrCat("stage ", stage, "'s order runs cluster ", split,
                          ", whose group copies share, between operations of another one: it stands alone");
    }
  }
  return StageRun(copy).Run();
}

std::string StepProblem(const v1::StepPlan& step, bool forward_only, const RankSizes& sizes) {
  if (forward_only || step.clusters_size() == 0) return "";
  const auto copy = static_cast<uint32_t>(sizes.copy);
  const auto found = std::find_if(step.copies().begin(), step.copies().end(),
                                  [&](const v1::CopyStages& stages) { return stages.dp_rank() == copy; });
  if (found == step.copies().end()) return absl::StrCat("copies: no order of the stages of copy ", copy);
  const std::string problem = OrdersProblem(step, *found, SequencesOf(step, sizes), sizes);
  return problem.empty() ? "" : absl::StrCat("copies: copy ", copy, ": ", problem);
}

}  // namespace

absl::Status CheckStageOrders(const v1::StepPlan& step, bool forward_only, const RankSizes& sizes) {
  if (sizes.stages == 1) return absl::OkStatus();
  const std::string problem = StepProblem(step, forward_only, sizes);
  return problem.empty() ? absl::OkStatus() : absl::InvalidArgumentError(problem);
}

}  // namespace stemma::worker
