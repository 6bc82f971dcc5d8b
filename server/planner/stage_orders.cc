#include "server/planner/stage_orders.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "glog/logging.h"

namespace stemma::server {
namespace {

constexpr double kRounding = 1e-12;  // of sums of seconds: less is no gain
constexpr double kNotYet = std::numeric_limits<double>::infinity();

// A cluster's prefixes, or a round, on all stages.
struct Item {
  const StageCosts* costs = nullptr;
  bool is_round = false;
  size_t cluster = 0;
  // An item has one time for each stage; kNotYet: it has not been given a time.
  absl::InlinedVector<double, 4> forward_end_s, backward_end_s;
  bool is_first_round = false;  // of its cluster

  double Seconds(size_t stage, bool forward) const {
    return forward ? (*costs)[stage].forward_s : (*costs)[stage].backward_s;
  }
  char Letter(bool forward) const { return is_round ? (forward ? 'F' : 'B') : (forward ? 'A' : 'C'); }
};

// The items of a step, and the two sequences as indices into them.
struct Sequences {
  std::vector<Item> items;
  std::vector<size_t> forward, backward;
  std::vector<std::optional<size_t>> prefixes;  // of each cluster

  explicit Sequences(const StageQuestion& question) {
    for (size_t c = 0; c < question.clusters.size(); ++c) AddCluster(question, c);
  }

 private:
  void AddCluster(const StageQuestion& question, size_t c) {
    const StageCluster& cluster = question.clusters[c];
    CHECK(!cluster.rounds.empty()) << "a cluster without waves";
    const size_t first = items.size();
    prefixes.push_back(cluster.prefixes.empty() ? std::nullopt : std::optional(first));
    if (!cluster.prefixes.empty()) Add(question.stages, cluster.prefixes, /*is_round=*/false, c);
    const size_t first_round = items.size();
    for (const StageCosts& round : cluster.rounds) Add(question.stages, round, /*is_round=*/true, c);
    items[first_round].is_first_round = true;
    for (size_t i = first; i < items.size(); ++i) forward.push_back(i);
    for (size_t i = first; i < items.size(); ++i) {
      if (items[i].is_round) backward.push_back(i);
    }
    if (!cluster.prefixes.empty()) backward.push_back(first);
  }

  void Add(size_t stages, const StageCosts& costs, bool is_round, size_t cluster) {
    CHECK_EQ(costs.size(), stages);
    const absl::InlinedVector<double, 4> not_yet(stages, kNotYet);
    items.push_back({&costs, is_round, cluster, not_yet, not_yet});
  }
};

// The two newest messages of a stage.
class MessagesInFlight {
 public:
  int64_t bytes() const { return newest_ + before_; }
  // Takes the messages of an operation. Returns the most bytes that were there while it made them.
  int64_t SendOneByOne(const StageCost& cost) {
    int64_t most = bytes();
    for (int64_t i = 0; i < std::min<int64_t>(cost.messages, 3); ++i) {
      most = std::max(most, bytes());
      Send(cost.message_bytes);
    }
    return most;
  }
  // Takes the messages of an operation whose own bytes they are until it ends. Returns the bytes that were there
  // before.
  int64_t SendAtTheEnd(const StageCost& cost) {
    const int64_t before = bytes();
    for (int64_t i = 0; i < std::min<int64_t>(cost.messages, 2); ++i) Send(cost.message_bytes);
    return before;
  }

 private:
  void Send(int64_t bytes) { before_ = std::exchange(newest_, bytes); }

  int64_t newest_ = 0, before_ = 0;
};

// Where one stage is in its sequences.
struct Stage {
  size_t next_forward = 0, next_backward = 0;
  double free_s = 0;
  size_t rounds_in_flight = 0;
  int64_t kept_bytes = 0, host_bytes = 0;  // of all items in flight
  int64_t most_backward_bytes = 0;         // of any item
  MessagesInFlight messages;
  StageRun run;
};

class Scheduler {
 public:
  Scheduler(const StageQuestion& question, const StageRule& rule)
      : question_(question), rule_(rule), steps_(question), stages_(question.stages), next_(question.stages) {
    for (const Item& item : steps_.items) {
      for (size_t s = 0; s < stages_.size(); ++s) {
        stages_[s].most_backward_bytes = std::max(stages_[s].most_backward_bytes, (*item.costs)[s].backward_bytes);
      }
    }
  }

  StageOrders Run() {
    for (size_t s = 0; s < stages_.size(); ++s) next_[s] = NextOf(s);
    while (const std::optional<Next> next = Earliest()) {
      Start(*next);
      // Its neighbours may have an input more; what the others can do next is what it was.
      const size_t first = next->stage > 0 ? next->stage - 1 : 0, last = std::min(next->stage + 1, stages_.size() - 1);
      for (size_t s = first; s <= last; ++s) next_[s] = NextOf(s);
    }
    StageOrders orders;
    orders.rule = rule_;
    orders.limited = limited_;
    for (Stage& stage : stages_) {
      CHECK_EQ(stage.next_backward, steps_.backward.size()) << "stages wait for each other";
      orders.end_s = std::max(orders.end_s, stage.free_s);
    }
    for (Stage& stage : stages_) {
      stage.run.idle_s = orders.end_s - stage.run.busy_s;
      orders.stages.push_back(std::move(stage.run));
    }
    return orders;
  }

 private:
  struct Next {
    size_t stage = 0;
    bool forward = false;
    double begin_s = 0;
  };

  // Returns what can begin first on any stage. What has no time yet begins no earlier, so what is ready by then is
  // known.
  std::optional<Next> Earliest() const {
    std::optional<Next> first;
    for (const std::optional<Next>& next : next_) {
      if (next && (!first || next->begin_s < first->begin_s)) first = next;
    }
    return first;
  }

  std::optional<Next> NextOf(size_t s) {
    const double backward_s = std::max(stages_[s].free_s, BackwardReady(s));
    const double forward_s = std::max(stages_[s].free_s, ForwardReady(s));
    const bool forward_first = rule_.forward_first ? forward_s <= backward_s : forward_s < backward_s;
    // What is not allowed now is allowed after a backward at the earliest.
    if (forward_first && forward_s != kNotYet && MayStart(s)) return Next{s, /*forward=*/true, forward_s};
    if (backward_s != kNotYet) return Next{s, /*forward=*/false, backward_s};
    return std::nullopt;
  }

  double ForwardReady(size_t s) const {
    if (stages_[s].next_forward == steps_.forward.size()) return kNotYet;
    return s == 0 ? 0 : steps_.items[steps_.forward[stages_[s].next_forward]].forward_end_s[s - 1];
  }

  // A cluster's Phase C follows its rounds' backwards in the sequence, so on the last stage its input is there.
  double BackwardReady(size_t s) const {
    if (stages_[s].next_backward == steps_.backward.size()) return kNotYet;
    const Item& item = steps_.items[steps_.backward[stages_[s].next_backward]];
    return s + 1 == stages_.size() ? item.forward_end_s[s] : item.backward_end_s[s + 1];
  }

  bool MayStart(size_t s) {
    const Stage& stage = stages_[s];
    const Item& item = steps_.items[steps_.forward[stage.next_forward]];
    if (item.is_round && stage.rounds_in_flight >= stages_.size() - s + rule_.more_rounds) {
      limited_ = true;
      return false;
    }
    if (WaitsForCluster(s, item)) return false;
    return IsAlone(s, item) || Fits(s, item);
  }

  // Tells whether an earlier cluster is in flight, and it or the item's own stands alone.
  bool WaitsForCluster(size_t s, const Item& item) const {
    const size_t earliest = steps_.items[steps_.backward[stages_[s].next_backward]].cluster;
    if (earliest == item.cluster) return false;
    return question_.clusters[earliest].stands_alone || question_.clusters[item.cluster].stands_alone;
  }

  // Tells whether nothing is in flight but the item's own cluster's prefixes: else it is an earlier cluster whose
  // Phase C comes next.
  bool IsAlone(size_t s, const Item& item) const {
    const size_t next = steps_.backward[stages_[s].next_backward];
    return stages_[s].rounds_in_flight == 0 && steps_.items[next].cluster == item.cluster;
  }

  // Tells whether the item can begin, and after it all that is in flight can run its backward, in order.
  bool Fits(size_t s, const Item& item) const {
    const Stage& stage = stages_[s];
    const StageCost& cost = (*item.costs)[s];
    if (stage.kept_bytes + cost.forward_bytes > question_.budget_bytes) return false;
    if (stage.host_bytes + cost.host_bytes > question_.host_budget_bytes) return false;
    int64_t kept = stage.kept_bytes + cost.kept_bytes;
    const std::optional<size_t> prefixes = steps_.prefixes[item.cluster];
    // Where memory is ample many are in flight, and need not be looked at one by one.
    if (kept + stage.most_backward_bytes <= question_.budget_bytes) return true;
    const auto runs_backward = [&](const Item& other) {
      const StageCost& later = (*other.costs)[s];
      kept -= later.kept_bytes + LetGoOf(s, other);
      return kept + later.backward_bytes <= question_.budget_bytes;
    };
    // The rounds before it of its own cluster are in flight, and the prefixes, whose backward comes last.
    for (size_t i = stage.next_backward; i < steps_.backward.size(); ++i) {
      const Item& other = steps_.items[steps_.backward[i]];
      if (other.forward_end_s[s] == kNotYet || steps_.backward[i] == prefixes) break;
      if (!runs_backward(other)) return false;
    }
    if (!runs_backward(item)) return false;
    return !item.is_round || !prefixes || runs_backward(steps_.items[*prefixes]);
  }

  // Returns what the begin of an item's backward frees beside what the item keeps: the first of a cluster's rounds lets
  // go of the prefixes' outputs, which are among what these keep.
  int64_t LetGoOf(size_t s, const Item& item) const {
    const std::optional<size_t> prefixes = steps_.prefixes[item.cluster];
    if (!prefixes) return 0;
    const int64_t outputs = (*steps_.items[*prefixes].costs)[s].output_bytes;
    return !item.is_round ? -outputs : item.is_first_round ? outputs : 0;
  }

  void Start(const Next& next) {
    Stage& stage = stages_[next.stage];
    const size_t index = next.forward ? steps_.forward[stage.next_forward++] : steps_.backward[stage.next_backward++];
    Item& item = steps_.items[index];
    const StageCost& cost = (*item.costs)[next.stage];
    const double seconds = item.Seconds(next.stage, next.forward), end_s = next.begin_s + seconds;
    (next.forward ? item.forward_end_s : item.backward_end_s)[next.stage] = end_s;
    stage.free_s = end_s;
    stage.run.busy_s += seconds;
    stage.run.operations.push_back({item.Letter(next.forward), next.begin_s, end_s});
    if (!next.forward) stage.kept_bytes -= cost.kept_bytes + LetGoOf(next.stage, item);
    const int64_t own = next.forward ? cost.forward_bytes : cost.backward_bytes;
    const int64_t bytes = own + (next.forward ? stage.messages.bytes() : stage.messages.SendOneByOne(cost));
    stage.run.peak_bytes = std::max(stage.run.peak_bytes, stage.kept_bytes + bytes);
    stage.kept_bytes += next.forward ? cost.kept_bytes : 0;
    stage.host_bytes += next.forward ? cost.host_bytes : -cost.host_bytes;
    stage.run.host_peak_bytes = std::max(stage.run.host_peak_bytes, stage.host_bytes);
    if (item.is_round) next.forward ? ++stage.rounds_in_flight : --stage.rounds_in_flight;
  }

  const StageQuestion& question_;
  const StageRule rule_;
  bool limited_ = false;
  Sequences steps_;
  std::vector<Stage> stages_;
  std::vector<std::optional<Next>> next_;  // of each stage
};

// Returns, of each stage, how long it is from a step's begin to its first round at least; from the end of its last
// round to the step's end, read backwards in time, it is the same. Prefixes and rounds come from the stage above.
std::vector<double> ChainSeconds(const StageCosts& prefixes, const StageCosts& round, double StageCost::*seconds) {
  std::vector<double> chain;
  double prefix_s = 0, round_s = 0;
  for (size_t s = 0; s < round.size(); ++s) {
    if (!prefixes.empty()) prefix_s += prefixes[s].*seconds;
    chain.push_back(std::max(prefix_s, round_s));
    round_s = chain.back() + round[s].*seconds;
  }
  return chain;
}

bool EndsBefore(const StageOrders& a, const StageOrders& b) { return a.end_s < b.end_s * (1 - kRounding); }

// Returns what more rounds in flight make of the orders: twice as many each time, then as few as end as early.
StageOrders BestOfRule(const StageQuestion& question, bool forward_first) {
  const double least_s = LeastStageSeconds(question) * (1 + kRounding);
  const auto with = [&](size_t more) { return OrderStagesWith(question, {more, forward_first}); };
  StageOrders best = with(0);
  size_t fewer = 0;  // with so many it ends later than the best
  bool limited = best.limited;
  for (size_t more = 1; limited && best.end_s > least_s; more *= 2) {
    StageOrders orders = with(more);
    limited = orders.limited;
    if (!EndsBefore(orders, best)) continue;
    fewer = more / 2;
    best = std::move(orders);
  }
  while (best.rule.more_rounds > fewer + 1) {
    const size_t middle = fewer + (best.rule.more_rounds - fewer) / 2;
    StageOrders orders = with(middle);
    if (EndsBefore(best, orders)) {
      fewer = middle;
    } else {
      best = std::move(orders);
    }
  }
  return best;
}

}  // namespace

std::string StageRun::Letters() const {
  std::string letters;
  for (const StageOperation& operation : operations) letters.push_back(operation.letter);
  return letters;
}

StageOrders OrderForwards(const StageQuestion& question) {
  StageOrders orders;
  orders.stages.resize(question.stages);
  std::vector<MessagesInFlight> messages(question.stages);
  const auto run = [&](char letter, const StageCosts& costs, const StageCosts& kept) {
    double input_s = 0;
    for (size_t s = 0; s < question.stages; ++s) {
      StageRun& stage = orders.stages[s];
      const double free_s = stage.operations.empty() ? 0 : stage.operations.back().end_s;
      const double begin_s = std::max(free_s, input_s);
      input_s = begin_s + costs[s].forward_s;
      stage.operations.push_back({letter, begin_s, input_s});
      stage.busy_s += costs[s].forward_s;
      const int64_t bytes =
          costs[s].forward_bytes + (kept.empty() ? 0 : kept[s].kept_bytes) + messages[s].SendAtTheEnd(costs[s]);
      stage.peak_bytes = std::max(stage.peak_bytes, bytes);
    }
    orders.end_s = input_s;
  };
  for (const StageCluster& cluster : question.clusters) {
    if (!cluster.prefixes.empty()) run('A', cluster.prefixes, {});
    for (const StageCosts& round : cluster.rounds) run('F', round, cluster.prefixes);
  }
  for (StageRun& stage : orders.stages) stage.idle_s = orders.end_s - stage.busy_s;
  return orders;
}

double LeastStageSeconds(const StageQuestion& question) {
  if (question.clusters.empty()) return 0;
  const StageCluster &first = question.clusters.front(), &last = question.clusters.back();
  const std::vector<double> fill = ChainSeconds(first.prefixes, first.rounds.front(), &StageCost::forward_s);
  const std::vector<double> drain = ChainSeconds(last.prefixes, last.rounds.back(), &StageCost::backward_s);
  double least = 0;
  for (size_t s = 0; s < question.stages; ++s) {
    // The first cluster's Phase A and the last one's Phase C run meanwhile.
    double seconds = fill[s] + drain[s];
    if (!first.prefixes.empty()) seconds -= first.prefixes[s].forward_s;
    if (!last.prefixes.empty()) seconds -= last.prefixes[s].backward_s;
    for (const StageCluster& cluster : question.clusters) {
      if (!cluster.prefixes.empty()) seconds += cluster.prefixes[s].forward_s + cluster.prefixes[s].backward_s;
      for (const StageCosts& round : cluster.rounds) seconds += round[s].forward_s + round[s].backward_s;
    }
    least = std::max(least, seconds);
  }
  return least;
}

StageOrders OrderStages(const StageQuestion& question) {
  StageOrders best = BestOfRule(question, /*forward_first=*/false);
  if (best.end_s <= LeastStageSeconds(question) * (1 + kRounding)) return best;
  StageOrders other = BestOfRule(question, /*forward_first=*/true);
  return EndsBefore(other, best) ? other : best;
}

StageOrders OrderStagesWith(const StageQuestion& question, const StageRule& rule) {
  return Scheduler(question, rule).Run();
}

}  // namespace stemma::server
