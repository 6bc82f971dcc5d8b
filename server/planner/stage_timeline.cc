#include "server/planner/stage_timeline.h"

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>

#include "glog/logging.h"

namespace stemma::server {
namespace {

constexpr double kNotEnded = std::numeric_limits<double>::infinity();

// What a stage does next: an operation of its order, or an exchange with another copy's stage.
struct Event {
  double seconds = 0;
  bool forward = false;
  size_t item = 0;  // of the copy's, of that sequence
  bool meets = false;
  std::tuple<size_t, size_t, bool> meeting = {};  // shared group, helper, whether gradients come back
};

struct TimedStage {
  std::vector<Event> events;
  size_t next = 0;
  double free_s = 0;
};

// One copy's stages, and when each has ended each item of either sequence.
class Copy {
 public:
  Copy(const CopyPipeline& pipeline, size_t number, std::span<const StageExchange> shared)
      : pipeline_(pipeline), number_(number), shared_(shared) {
    for (size_t g = 0; g < shared.size(); ++g) {
      if (pipeline.parts.at(g)) group_of_cluster_[*pipeline.parts[g]] = g;
    }
    for (size_t s = 0; s < pipeline.orders.stages.size(); ++s) AddStage(s);
    for (std::vector<std::vector<double>>* ends : {&forward_end_s_, &backward_end_s_}) {
      ends->assign(stages_.size(), std::vector<double>(Items(), kNotEnded));
    }
  }

  size_t num_stages() const { return stages_.size(); }
  TimedStage& stage(size_t s) { return stages_[s]; }
  double end_s() const {
    double end_s = 0;
    for (const TimedStage& stage : stages_) end_s = std::max(end_s, stage.free_s);
    return end_s;
  }

  // Runs operations up to the next exchange; returns whether there were any.
  bool Advance(size_t s) {
    TimedStage& stage = stages_[s];
    bool moved = false;
    for (; stage.next < stage.events.size() && !stage.events[stage.next].meets; ++stage.next) {
      const Event& event = stage.events[stage.next];
      const double input_s = InputSeconds(s, event);
      if (input_s == kNotEnded) break;
      stage.free_s = std::max(stage.free_s, input_s) + event.seconds;
      (event.forward ? forward_end_s_ : backward_end_s_)[s][event.item] = stage.free_s;
      moved = true;
    }
    return moved;
  }

 private:
  size_t Items() const {
    size_t items = 0;
    for (const StageCluster& cluster : pipeline_.question.clusters) {
      items += cluster.rounds.size() + (cluster.prefixes.empty() ? 0 : 1);
    }
    return items;
  }

  double InputSeconds(size_t s, const Event& event) const {
    if (event.forward) return s == 0 ? 0 : forward_end_s_[s - 1][event.item];
    return s + 1 == stages_.size() ? 0 : backward_end_s_[s + 1][event.item];
  }

  // Where one of the two sequences is.
  struct Place {
    size_t cluster = 0, round = 0, item = 0;
  };

  void AddStage(size_t s) {
    TimedStage& stage = stages_.emplace_back();
    Place forward, backward;
    for (const StageOperation& operation : pipeline_.orders.stages[s].operations) {
      const bool is_forward = operation.letter == 'A' || operation.letter == 'F';
      AddOperation(s, operation.letter, is_forward, is_forward ? forward : backward, stage.events);
    }
  }

  void AddOperation(size_t s, char letter, bool is_forward, Place& place, std::vector<Event>& events) const {
    const std::vector<StageCluster>& clusters = pipeline_.question.clusters;
    const bool is_round = letter == 'F' || letter == 'B';
    // A cluster begins with its A, or has none, and ends with its C, or has none.
    const bool ended = place.round == clusters[place.cluster].rounds.size();
    if (ended && (is_round || is_forward)) place = {place.cluster + 1, 0, place.item};
    const StageCluster& cluster = clusters.at(place.cluster);
    const StageCost& cost = is_round ? cluster.rounds[place.round++][s] : cluster.prefixes[s];
    const Event event = {
        .seconds = is_forward ? cost.forward_s : cost.backward_s, .forward = is_forward, .item = place.item++};
    if (letter == 'C') AddExchanges(s, place.cluster, /*gradients=*/true, events);
    events.push_back(event);
    if (letter == 'A') AddExchanges(s, place.cluster, /*gradients=*/false, events);
    const bool ends_cluster =
        letter == 'C' || (letter == 'B' && cluster.prefixes.empty() && place.round == cluster.rounds.size());
    if (ends_cluster) place = {place.cluster + 1, 0, place.item};
  }

  static size_t Owner(const StageExchange& group) { return static_cast<size_t>(group.copies[0]); }

  void AddExchanges(size_t s, size_t cluster, bool gradients, std::vector<Event>& events) const {
    const auto found = group_of_cluster_.find(cluster);
    if (found == group_of_cluster_.end()) return;
    const StageExchange& group = shared_[found->second];
    if (gradients && !group.returns) return;
    for (size_t i = 1; i < group.copies.size(); ++i) {
      const auto helper = static_cast<size_t>(group.copies[i]);
      if (Owner(group) != number_ && helper != number_) continue;
      events.push_back({.seconds = (gradients ? group.return_s : group.send_s)[s],
                        .meets = true,
                        .meeting = {found->second, helper, gradients}});
    }
  }

  const CopyPipeline& pipeline_;
  const size_t number_;
  const std::span<const StageExchange> shared_;
  std::map<size_t, size_t> group_of_cluster_;
  std::vector<TimedStage> stages_;
  std::vector<std::vector<double>> forward_end_s_, backward_end_s_;  // by stage and item
};

// Ends one exchange that two copies' ranks of the stage are both at; returns whether there was one.
bool MeetOnStage(std::vector<Copy>& copies, size_t s) {
  std::map<std::tuple<size_t, size_t, bool>, TimedStage*> waiting;
  for (Copy& copy : copies) {
    if (s >= copy.num_stages()) continue;
    TimedStage& stage = copy.stage(s);
    if (stage.next == stage.events.size() || !stage.events[stage.next].meets) continue;
    const Event& event = stage.events[stage.next];
    const auto [at, is_first] = waiting.emplace(event.meeting, &stage);
    if (is_first) continue;
    TimedStage& other = *at->second;
    stage.free_s = other.free_s = std::max(stage.free_s, other.free_s) + event.seconds;
    ++stage.next;
    ++other.next;
    return true;
  }
  return false;
}

}  // namespace

std::vector<double> RunCopies(std::span<const CopyPipeline> copies, std::span<const StageExchange> shared) {
  std::vector<Copy> running;
  size_t stages = 0;
  for (size_t number = 0; number < copies.size(); ++number) {
    running.emplace_back(copies[number], number, shared);
    stages = std::max(stages, running.back().num_stages());
  }
  for (bool moved = true; moved;) {
    moved = false;
    for (Copy& copy : running) {
      for (size_t s = 0; s < copy.num_stages(); ++s) moved |= copy.Advance(s);
    }
    for (size_t s = 0; s < stages; ++s) moved |= MeetOnStage(running, s);
  }
  std::vector<double> ends;
  for (Copy& copy : running) {
    for (size_t s = 0; s < copy.num_stages(); ++s) {
      CHECK_EQ(copy.stage(s).next, copy.stage(s).events.size()) << "stages of copies wait for each other";
    }
    ends.push_back(copy.end_s());
  }
  return ends;
}

}  // namespace stemma::server
