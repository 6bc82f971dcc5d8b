#include "server/planner/sharded_step.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <utility>

#include "common/base/mesh.h"
#include "common/cost/block_cost.h"
#include "common/cost/parameter_units.h"
#include "common/cost/plan_seconds.h"
#include "common/cost/rank_shape.h"
#include "common/cost/state_bytes.h"
#include "glog/logging.h"
#include "server/planner/parameter_sweeps.h"
#include "server/planner/stage_plan.h"

namespace stemma::server {
namespace {

// The sweeps of one letter of a stage's order (CopyStages of stemma/v1/plan.proto), in a place.
std::vector<UnitVisit> VisitsOfLetter(char letter, const v1::ParameterSweeps& sweeps, const ParameterUnits& units,
                                      bool forward_only) {
  std::vector<UnitVisit> visits;
  const auto add = [&](Sweep sweep) {
    for (const UnitVisit& visit : VisitsOf(units, sweep, forward_only)) visits.push_back(visit);
  };
  const uint32_t blocks = letter == 'A' || letter == 'C' ? sweeps.prefix_blocks() : 1;
  for (uint32_t block = 0; block < blocks; ++block) {
    if (letter == 'A' || (letter == 'C' && sweeps.prefix_again())) add(Sweep::kPrefix);
    if (letter == 'F') add(Sweep::kWave);
    if (letter == 'B' || letter == 'C') add(Sweep::kBackward);
  }
  return visits;
}

// Which backward sweeps reduce gradients.
enum class Reducing { kEach, kLast, kNone };

Reducing ReducingOf(bool sums_gradients) { return sums_gradients ? Reducing::kLast : Reducing::kEach; }

// What gathering takes and moves on the ranks of one stage.
class StageTraffic {
 public:
  StageTraffic(ParameterUnits units, const PlannerModel& model, bool forward_only, Reducing reducing)
      : units_(std::move(units)), model_(model), forward_only_(forward_only), reducing_(reducing) {}

  // Returns the same for sweeps that are no step's last.
  StageTraffic BeforeTheLast() const {
    return {units_, model_, forward_only_, reducing_ == Reducing::kLast ? Reducing::kNone : reducing_};
  }

  // Returns the seconds of each letter of an order. `places`: the sweeps of the step's places.
  std::vector<double> Seconds(const std::string& order, const std::vector<v1::ParameterSweeps>& places) {
    OperationVisits visits;
    std::map<char, size_t> place;    // of each letter's next
    std::map<char, uint32_t> round;  // that it has in that place
    for (const char letter : order) {
      size_t& at = place[letter];
      const bool is_wave = letter == 'F' || letter == 'B';
      while (is_wave ? round[letter] == places[at].rounds() : places[at].prefix_blocks() == 0) {
        ++at;
        round[letter] = 0;
        CHECK_LT(at, places.size());
      }
      visits.push_back(VisitsOfLetter(letter, places[at], units_, forward_only_));
      is_wave ? ++round[letter] : ++at;
    }
    if (reducing_ == Reducing::kLast) ReduceOnce(visits);
    if (reducing_ == Reducing::kNone) ReduceNever(visits);
    std::vector<double> seconds;
    for (const UnitTraffic& traffic : TrafficOf(units_, visits)) {
      total_ += traffic;
      seconds.push_back(SecondsOf(traffic));
    }
    return seconds;
  }

  // Returns what one rank has sent.
  int64_t bytes() const { return total_.weight_elements * run_bytes() + total_.gradient_elements * accumulate_bytes(); }

 private:
  int64_t run_bytes() const { return RunBytes(RunDtypeOf(model_.run.dtype())); }
  int64_t accumulate_bytes() const { return AccumulateBytes(RunDtypeOf(model_.run.dtype())); }

  double SecondsOf(const UnitTraffic& traffic) const {
    const auto bytes =
        static_cast<double>(traffic.weight_elements * run_bytes() + traffic.gradient_elements * accumulate_bytes());
    const auto collectives = static_cast<double>(traffic.weight_collectives + traffic.gradient_collectives);
    return bytes * model_.rates[kDataByte] + collectives * model_.rates[kDataCollective];
  }

  const ParameterUnits units_;
  const PlannerModel& model_;
  const bool forward_only_;
  const Reducing reducing_;
  UnitTraffic total_;
};

class ShardedStep {
 public:
  ShardedStep(const PlannerModel& model, const MemoryOptions& options, const std::vector<PlannerGroup>& groups,
              v1::StepPlan& step, v1::StepReport& report)
      : model_(model), options_(options), groups_(groups), step_(step), report_(report) {
    for (const ModelShard& shard : StageShards(model.config, model.run.mesh())) {
      traffic_.emplace_back(ParameterUnitsOf(shard, DataRanks(model.run.mesh())), model, options.forward_only,
                            ReducingOf(options.sums_gradients));
    }
  }

  void Run() {
    if (step_.clusters().empty()) return;
    std::vector<int64_t> prefix_rows;
    for (const PlannerGroup& group : groups_) prefix_rows.push_back(group.prompt_tokens - 1);
    ShareSweeps(prefix_rows, {DpSize(model_.run.mesh()), CpSize(model_.run.mesh())}, step_);
    for (const v1::Cluster& cluster : step_.clusters()) {
      if (cluster.dp_rank() == 0) places_.push_back(cluster.sweeps());
    }
    options_.stages.empty() ? AddPhases() : OrderAllStages();
    // Ranks of one place in tp and cp send alike.
    const auto ranks =
        static_cast<int64_t>(DataRanks(model_.run.mesh())) * static_cast<int64_t>(TpSize(model_.run.mesh()));
    int64_t bytes = 0;
    for (const StageTraffic& stage : traffic_) bytes += ranks * stage.bytes();
    report_.set_parameters_bytes(static_cast<uint64_t>(bytes));
    if (!options_.sums_gradients) return;
    step_.set_reduce_gradients_once(true);
    report_.set_gradient_sums_bytes(static_cast<uint64_t>(StateBytesOf(model_.config, model_.run).gradient_sums));
  }

 private:
  // One stage runs one operation after the other, each as long as its computing or its gathering, whichever is more.
  void AddPhases() {
    std::string order;
    for (const v1::ParameterSweeps& place : places_) order += OrderOf(place);
    const std::vector<double> gathering = traffic_.front().Seconds(order, places_);
    const StageQuestion most = MostOfCopies();
    double step_s = 0;
    auto letter_s = gathering.begin();
    for (size_t at = 0; at < places_.size(); ++at) {
      const StageCluster& cluster = most.clusters[at];
      size_t round = 0;
      for (const char letter : OrderOf(places_[at])) {
        const bool is_wave = letter == 'F' || letter == 'B', is_forward = letter == 'A' || letter == 'F';
        const StageCost& cost = is_wave ? cluster.rounds[round].front() : cluster.prefixes.front();
        step_s += std::max(is_forward ? cost.forward_s : cost.backward_s, *letter_s++);
        const bool ends_round = options_.forward_only ? letter == 'F' : letter == 'B';
        round += ends_round ? 1 : 0;
      }
    }
    report_.set_parameters_s(std::max(step_s - PhasesSeconds(report_), 0.0));
  }

  std::string OrderOf(const v1::ParameterSweeps& place) const {
    std::string order = place.prefix_blocks() > 0 ? "A" : "";
    for (uint32_t round = 0; round < place.rounds(); ++round) order += options_.forward_only ? "F" : "FB";
    return order + (place.prefix_blocks() > 0 && !options_.forward_only ? "C" : "");
  }

  // All copies run one order: that of what the copy that has most of each operation would run alone.
  void OrderAllStages() {
    StageQuestion question = MostOfCopies();
    for (size_t at = 0; at < places_.size(); ++at) AddGathering(places_[at], question.clusters[at]);
    StageOrders orders = options_.forward_only ? OrderForwards(question) : OrderStages(question);
    for (size_t s = 0; s < traffic_.size(); ++s) traffic_[s].Seconds(orders.stages[s].Letters(), places_);
    report_.set_parameters_s(std::max(orders.end_s - report_.pipeline_s(), 0.0));
    RaisePeaks(orders);
    step_.clear_copies();
    if (options_.forward_only) return;
    for (uint32_t copy = 0; copy < DpSize(model_.run.mesh()); ++copy) AddCopyStages(copy, orders, step_);
  }

  // A copy may have more in flight in the order of all copies than in its own.
  void RaisePeaks(const StageOrders& orders) {
    for (const StageRun& run : orders.stages) {
      const auto peak = static_cast<uint64_t>(run.peak_bytes + options_.held_bytes);
      report_.set_peak_bytes(std::max(report_.peak_bytes(), peak));
      report_.set_peak_bytes_with_headroom(std::max(report_.peak_bytes_with_headroom(), peak));
    }
  }

  StageQuestion MostOfCopies() {
    StageQuestion most = {.stages = options_.all_stages().size(),
                          .clusters = std::vector<StageCluster>(places_.size()),
                          .budget_bytes = options_.budget_bytes,
                          .host_budget_bytes = options_.host_bytes_max()};
    std::vector<size_t> place(DpSize(model_.run.mesh()));
    for (const v1::Cluster& cluster : step_.clusters()) {
      const size_t at = place[cluster.dp_rank()]++;
      if (!cluster.waves().empty()) Raise(StagesOf(options_, groups_, {&cluster}).clusters.front(), most.clusters[at]);
    }
    RaiseMessages(most);
    return most;
  }

  // A copy that runs nothing in the place of others' operations still holds its messages from before: any may be as
  // large as the largest.
  static void RaiseMessages(StageQuestion& question) {
    std::vector<int64_t> largest(question.stages);
    const auto for_each = [&](const auto& f) {
      for (StageCluster& cluster : question.clusters) {
        for (size_t s = 0; s < cluster.prefixes.size(); ++s) f(cluster.prefixes[s].message_bytes, largest[s]);
        for (StageCosts& round : cluster.rounds) {
          for (size_t s = 0; s < round.size(); ++s) f(round[s].message_bytes, largest[s]);
        }
      }
    };
    for_each([](int64_t bytes, int64_t& most) { most = std::max(most, bytes); });
    for_each([](int64_t& bytes, int64_t most) { bytes = most; });
  }

  static void Raise(const StageCluster& cluster, StageCluster& most) {
    most.stands_alone |= cluster.stands_alone;
    if (!cluster.prefixes.empty()) RaiseStageCosts(cluster.prefixes, most.prefixes);
    if (most.rounds.size() < cluster.rounds.size()) most.rounds.resize(cluster.rounds.size());
    for (size_t r = 0; r < cluster.rounds.size(); ++r) RaiseStageCosts(cluster.rounds[r], most.rounds[r]);
  }

  // An operation takes no less than its gathering, as if nothing of it were here yet.
  void AddGathering(const v1::ParameterSweeps& sweeps, StageCluster& cluster) {
    for (size_t s = 0; s < traffic_.size(); ++s) {
      StageTraffic alone = traffic_[s].BeforeTheLast();
      const auto seconds = [&](const char* letter) { return alone.Seconds(letter, {sweeps}).front(); };
      const auto raise = [&](StageCosts& costs, const char* forward, const char* backward) {
        costs[s].forward_s = std::max(costs[s].forward_s, seconds(forward));
        if (!options_.forward_only) costs[s].backward_s = std::max(costs[s].backward_s, seconds(backward));
      };
      if (!cluster.prefixes.empty()) raise(cluster.prefixes, "A", "C");
      for (StageCosts& round : cluster.rounds) raise(round, "F", "B");
    }
  }

  const PlannerModel& model_;
  const MemoryOptions& options_;
  const std::vector<PlannerGroup>& groups_;
  v1::StepPlan& step_;
  v1::StepReport& report_;
  std::vector<StageTraffic> traffic_;  // of each stage
  std::vector<v1::ParameterSweeps> places_;
};

}  // namespace

int64_t RowsWorthGathering(const PlannerModel& model, bool sums_gradients) {
  constexpr int64_t kRowsMax = 16 * kWaveRows;
  int64_t rows = kWaveRows;
  for (const ModelShard& shard : StageShards(model.config, model.run.mesh())) {
    const ParameterUnits units = ParameterUnitsOf(shard, DataRanks(model.run.mesh()));
    StageTraffic traffic =
        StageTraffic(units, model, /*forward_only=*/false, ReducingOf(sums_gradients)).BeforeTheLast();
    v1::ParameterSweeps wave;
    wave.set_rounds(1);
    double gathering_s = 0;
    for (const double seconds : traffic.Seconds("FB", {wave})) gathering_s += seconds;
    // Forward is two FLOPs of each weight that a row is multiplied with, backward four.
    const double used = static_cast<double>(units.ranks * units.part()) / WeightsReadForEachUsed(model.config);
    const double row_s = 6 * used * model.rates[kLinear];
    if (row_s * static_cast<double>(kRowsMax) <= gathering_s) return kRowsMax;
    rows = std::max(rows, static_cast<int64_t>(gathering_s / row_s));
  }
  return rows;
}

void ShardStep(const PlannerModel& model, const MemoryOptions& options, const std::vector<PlannerGroup>& groups,
               v1::StepPlan& step, v1::StepReport& report) {
  ShardedStep(model, options, groups, step, report).Run();
}

}  // namespace stemma::server
