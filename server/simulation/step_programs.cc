#include "server/simulation/step_programs.h"

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "common/base/mesh.h"
#include "common/cost/cluster_facts.h"
#include "common/cost/context_parallel_cost.h"
#include "common/cost/rank_shape.h"
#include "glog/logging.h"
#include "server/planner/operation_work.h"
#include "server/planner/split_cost.h"
#include "server/simulation/operation_seconds.h"
#include "server/simulation/parameter_wires.h"

namespace stemma::server {
namespace {

// What a round costs one context-parallel rank; `has_wave` false: the rank has no wave in it. `is_cut`: all ranks run
// one wave in it, and wait for each other.
struct RoundSeconds {
  bool has_wave = false, is_cut = false;
  OperationSeconds forward, backward;
};

// One cluster on one stage.
struct StageSeconds {
  OperationSeconds prefix_forward, prefix_backward;
  std::vector<std::vector<RoundSeconds>> rounds;  // by round and context-parallel rank
};

// Numbers messages and meetings: the same key has the same number.
template <typename... Parts>
class Numbers {
 public:
  int32_t Of(Parts... parts) {
    return numbers_.try_emplace({parts...}, static_cast<int32_t>(numbers_.size())).first->second;
  }

 private:
  std::map<std::tuple<Parts...>, int32_t> numbers_;
};

Work Less(Work work, const Work& other) {
  for (size_t i = 0; i < work.units.size(); ++i) work.units[i] -= other.units[i];
  return work;
}

// What the stages of one cluster's copy take for its operations.
class ClusterSeconds {
 public:
  ClusterSeconds(const MemoryOptions& options, const std::vector<PlannerGroup>& groups, const v1::Cluster& cluster)
      : options_(options), cluster_(cluster), operations_(groups, cluster, options.shape.cp, options.forward_only) {}

  bool has_prefixes() const { return operations_.has_prefixes(); }
  // Tells whether context-parallel ranks meet in each round of waves.
  bool regathers() const { return operations_.prefix().regather && options_.shape.cp > 1; }

  StageSeconds On(const ByteShape& stage) const {
    StageSeconds seconds;
    const WaveWork regather = operations_.Regather(stage);
    const std::vector<std::vector<int>> waves = WavesByRank(cluster_, static_cast<int>(stage.cp));
    for (size_t rank = 0; rank < waves.size(); ++rank) {
      for (size_t round = 0; round < waves[rank].size(); ++round) {
        if (round == seconds.rounds.size()) seconds.rounds.emplace_back(waves.size());
        const v1::Wave& wave = cluster_.waves(waves[rank][round]);
        const bool is_known = rank > 0 && wave.cut_rows();  // it is the same for all
        seconds.rounds[round][rank] = is_known ? seconds.rounds[round][0] : WaveSeconds(stage, wave);
      }
    }
    for (std::vector<RoundSeconds>& round : seconds.rounds) {
      for (RoundSeconds& rank : round) AddRegather(regather, stage, rank);
    }
    if (!has_prefixes()) return seconds;
    const PrefixWork work = operations_.Prefixes(stage);
    seconds.prefix_forward = SecondsOf(work.forward, options_.rates);
    seconds.prefix_backward = SecondsOf(work.backward, options_.rates);
    if (regathers()) HideBesideLayers(Axis::kContext, GatheredShare(stage), Layers(stage), seconds.prefix_backward);
    return seconds;
  }

 private:
  static int64_t Layers(const ByteShape& stage) { return stage.config.num_layers; }

  RoundSeconds WaveSeconds(const ByteShape& stage, const v1::Wave& wave) const {
    const WaveWork work = operations_.Wave(stage, operations_.MembersOf(wave));
    return {.has_wave = true,
            .is_cut = wave.cut_rows(),
            .forward = SecondsOf(work.forward, options_.rates),
            .backward = SecondsOf(Less(work.both, work.forward), options_.rates)};
  }

  // Returns which part of what Phase C sends over cp is K/V that it gathers again.
  double GatheredShare(const ByteShape& stage) const {
    const ContextSentBytes sent = PrefixBackwardContextSent(stage, operations_.prefix());
    return sent.total() > 0 ? static_cast<double>(sent.prefix_kv) / static_cast<double>(sent.total()) : 0;
  }

  // A rank without a wave takes part in the others' exchanges, too. What the rows of a cut rollout exchange beside is
  // waited for.
  void AddRegather(const WaveWork& regather, const ByteShape& stage, RoundSeconds& rank) const {
    if (!regathers()) return;
    const auto add = [&](const Work& work, OperationSeconds& seconds) {
      const OperationSeconds wire = SecondsOf(work, options_.rates);
      const auto at = static_cast<size_t>(Axis::kContext);
      seconds.wire_s[at] += wire.wire_s[at];
      seconds.sent_bytes[at] += wire.sent_bytes[at];
      const double share = seconds.wire_s[at] > 0 ? wire.wire_s[at] / seconds.wire_s[at] : 0;
      HideBesideLayers(Axis::kContext, share, Layers(stage), seconds);
    };
    add(regather.forward, rank.forward);
    add(Less(regather.both, regather.forward), rank.backward);
  }

  const MemoryOptions& options_;
  const v1::Cluster& cluster_;
  const ClusterOperations operations_;
};

class Programs {
 public:
  Programs(const MemoryOptions& options, const PlannerModel& model, const std::vector<PlannerGroup>& groups)
      : options_(options),
        model_(model),
        groups_(groups),
        pp_(PpSize(model.run.mesh())),
        cp_(CpSize(model.run.mesh())),
        shards_(StageShards(model.config, model.run.mesh())) {
    const size_t programs = static_cast<size_t>(DpSize(model.run.mesh())) * pp_ * cp_;
    made_.programs.resize(programs);
    made_.hidden_s.resize(programs);
    made_.sent_bytes.resize(programs);
    made_.message_s.resize(programs);
  }

  StepPrograms Of(const v1::StepPlan& step) {
    reduces_once_ = step.reduce_gradients_once();
    std::map<uint32_t, std::vector<const v1::Cluster*>> copies;
    for (const v1::Cluster& cluster : step.clusters()) copies[cluster.dp_rank()].push_back(&cluster);
    std::map<uint32_t, const v1::CopyStages*> orders;
    for (const v1::CopyStages& copy : step.copies()) orders[copy.dp_rank()] = &copy;
    for (const auto& [copy, clusters] : copies) {
      const auto ordered = orders.find(copy);
      AddCopy(copy, clusters, ordered == orders.end() ? nullptr : ordered->second);
    }
    return std::move(made_);
  }

 private:
  // A cluster of the copy at work. Where parameters are sharded, all copies run what stands in its sweeps.
  struct CopyCluster {
    const v1::Cluster* cluster = nullptr;
    bool has_prefixes = false, regathers = false;
    std::vector<StageSeconds> stages;

    bool is_sharded() const { return cluster->has_sweeps(); }
    size_t own_rounds() const { return stages[0].rounds.size(); }
    size_t rounds() const { return is_sharded() ? cluster->sweeps().rounds() : own_rounds(); }
    bool runs_prefixes() const { return is_sharded() ? cluster->sweeps().prefix_blocks() > 0 : has_prefixes; }
  };

  // What a stage runs next: a letter of its order, or the exchange of a group that copies share.
  struct Turn {
    char letter = 'A';
    size_t cluster = 0, round = 0;
    bool is_exchange() const { return letter == kSendKv || letter == kReturnGradients; }
  };
  static constexpr char kSendKv = 'k', kReturnGradients = 'g';

  void AddCopy(uint32_t copy, const std::vector<const v1::Cluster*>& clusters, const v1::CopyStages* orders) {
    copy_ = copy;
    clusters_.clear();
    for (const v1::Cluster* cluster : clusters) {
      const ClusterSeconds seconds(options_, groups_, *cluster);
      CopyCluster& added = clusters_.emplace_back();
      added = {cluster, seconds.has_prefixes(), seconds.regathers(), {}};
      for (const ByteShape& stage : options_.all_stages()) added.stages.push_back(seconds.On(stage));
    }
    for (stage_ = 0; stage_ < pp_; ++stage_) {
      AddTurns(orders == nullptr ? InTurn() : ByOrder(orders->orders(static_cast<int>(stage_))));
    }
  }

  // Lists one cluster after the other, and each wave's backward after its forward.
  std::vector<Turn> InTurn() const {
    std::vector<Turn> turns;
    for (size_t k = 0; k < clusters_.size(); ++k) {
      if (clusters_[k].runs_prefixes()) turns.push_back({'A', k});
      turns.push_back({kSendKv, k});
      for (size_t round = 0; round < clusters_[k].rounds(); ++round) {
        turns.push_back({'F', k, round});
        if (!options_.forward_only) turns.push_back({'B', k, round});
      }
      if (options_.forward_only) continue;
      turns.push_back({kReturnGradients, k});
      if (clusters_[k].runs_prefixes()) turns.push_back({'C', k});
    }
    return turns;
  }

  // Lists what the letters say: forwards and backwards each go through the clusters by themselves.
  std::vector<Turn> ByOrder(const std::string& letters) const {
    std::vector<Turn> turns;
    struct Place {
      size_t cluster = 0, round = 0;
    } forward, backward;
    const auto add_round = [&](char letter, Place& place) {
      while (place.round == clusters_[place.cluster].rounds()) place = {place.cluster + 1, 0};
      turns.push_back({letter, place.cluster, place.round++});
    };
    for (const char letter : letters) {
      if (letter == 'A') {
        // The cluster's forwards follow; those of the one before have ended.
        if (forward.round > 0) forward = {forward.cluster + 1, 0};
        turns.push_back({'A', forward.cluster});
        turns.push_back({kSendKv, forward.cluster});
      } else if (letter == 'F') {
        add_round('F', forward);
      } else if (letter == 'B') {
        add_round('B', backward);
      } else {
        CHECK_EQ(letter, 'C');
        turns.push_back({kReturnGradients, backward.cluster});
        turns.push_back({'C', backward.cluster});
      }
    }
    return turns;
  }

  void AddTurns(const std::vector<Turn>& turns) {
    const bool sharded = clusters_.front().is_sharded();
    // All copies run a stage's operations in one order, so what it sends is that of the first.
    if (sharded && parameter_wires_.size() == stage_) parameter_wires_.push_back(ParameterWires(turns));
    size_t operation = 0;
    for (const Turn& turn : turns) {
      if (turn.is_exchange()) {
        AddExchange(*clusters_[turn.cluster].cluster, turn.letter == kSendKv ? "K/V" : "gK/gV");
        continue;
      }
      const OperationSeconds* wire = sharded ? &parameter_wires_[stage_].at(operation++) : nullptr;
      turn.letter == 'A' || turn.letter == 'C' ? AddPrefix(turn, wire) : AddRound(turn, wire);
    }
  }

  std::vector<OperationSeconds> ParameterWires(const std::vector<Turn>& turns) const {
    SweptPass pass = {.operations = {}, .forward_only = options_.forward_only, .reduces_once = reduces_once_};
    for (const Turn& turn : turns) {
      if (!turn.is_exchange()) pass.operations.push_back({turn.letter, clusters_[turn.cluster].cluster->sweeps()});
    }
    const ParameterUnits units = ParameterUnitsOf(shards_[stage_], DataRanks(model_.run.mesh()));
    return ParameterWiresOf(units, Stage(), options_.rates, pass);
  }

  const ByteShape& Stage() const { return options_.all_stages()[stage_]; }

  // `wire`: what ranks that share parameters send in it; null: they are whole.
  void AddPrefix(const Turn& turn, const OperationSeconds* wire) {
    const CopyCluster& cluster = clusters_[turn.cluster];
    const StageSeconds& stage = cluster.stages[stage_];
    for (size_t rank = 0; rank < cp_; ++rank) {
      OperationSeconds seconds;
      if (cluster.has_prefixes) {
        seconds = turn.letter == 'A' ? stage.prefix_forward : stage.prefix_backward;
        HideCopy(stage, rank, seconds);
      }
      if (wire != nullptr) AddParameterWire(*wire, Stage().config.num_layers, seconds);
      SimulatedOperation operation = Begin(turn.letter, seconds);
      if (wire != nullptr || cp_ > 1) Meet(turn, wire != nullptr, operation);
      if (cluster.has_prefixes) Connect(turn, rank, seconds.message_s, operation);
      Append(std::move(operation), seconds, rank);
    }
  }

  void AddRound(const Turn& turn, const OperationSeconds* wire) {
    const CopyCluster& cluster = clusters_[turn.cluster];
    const bool own = turn.round < cluster.own_rounds();
    for (size_t rank = 0; rank < cp_; ++rank) {
      const RoundSeconds of_rank = own ? cluster.stages[stage_].rounds[turn.round][rank] : RoundSeconds{};
      if (!of_rank.has_wave && !cluster.regathers && wire == nullptr) continue;
      OperationSeconds seconds = turn.letter == 'F' ? of_rank.forward : of_rank.backward;
      if (wire != nullptr) AddParameterWire(*wire, Stage().config.num_layers, seconds);
      SimulatedOperation operation = Begin(turn.letter, seconds);
      if (wire != nullptr || cluster.regathers || of_rank.is_cut) Meet(turn, wire != nullptr, operation);
      if (of_rank.has_wave) Connect(turn, rank, seconds.message_s, operation);
      Append(std::move(operation), seconds, rank);
    }
  }

  // The context-parallel ranks of a copy meet; where parameters are sharded, those of all copies, which gather from
  // each other while they compute.
  void Meet(const Turn& turn, bool sharded, SimulatedOperation& operation) {
    operation.meeting = sharded ? meetings_.Of(0, stage_, turn.cluster, turn.round, turn.letter, kAllCopies)
                                : meetings_.Of(copy_, stage_, turn.cluster, turn.round, turn.letter, kOneCopy);
    if (!sharded) return;
    operation.meeting_axis = Axis::kData;
    operation.meets_last = true;
  }

  // K/V to the helpers of a group that copies share, and gK/gV back: the ranks of equal place meet, helper by helper.
  void AddExchange(const v1::Cluster& cluster, const char* name) {
    std::vector<uint32_t> helpers(cluster.helper_ranks().begin(), cluster.helper_ranks().end());
    if (cluster.has_owner_rank()) helpers = {copy_};
    if (helpers.empty()) return;
    const uint32_t group = cluster.prefix_groups(0);
    const int64_t prefix_rows = groups_[group].prompt_tokens - 1;
    const PartSeconds part = PartSecondsOf(options_, Stage(), prefix_rows);
    const PartBytes bytes = PartBytesOf(Stage(), prefix_rows, options_.forward_only);
    const bool gradients = name[0] == 'g', sends = gradients == cluster.has_owner_rank();
    for (const uint32_t helper : helpers) {
      for (size_t rank = 0; rank < cp_; ++rank) {
        OperationSeconds seconds;
        seconds.wire_s[static_cast<size_t>(Axis::kData)] = gradients ? part.return_s : part.send_s;
        seconds.sent_bytes[static_cast<size_t>(Axis::kData)] =
            sends ? static_cast<double>(gradients ? bytes.gradients : bytes.kv) : 0;
        SimulatedOperation operation = {.name = name, .wire_s = seconds.Exposed()};
        // The group is one step's once, so group and helper name the meeting.
        operation.meeting = meetings_.Of(group, helper, stage_, rank, gradients ? 'g' : 'k', kSharedGroup);
        operation.meeting_axis = Axis::kData;
        Append(std::move(operation), seconds, rank);
      }
    }
  }

  // Copies run beside Phase A and half of the waves, and beside the other half and Phase C, where the device can.
  void HideCopy(const StageSeconds& stage, size_t rank, OperationSeconds& seconds) const {
    if (!options_.rates.copies_overlap) return;
    double waves_s = 0;
    for (const std::vector<RoundSeconds>& round : stage.rounds) {
      waves_s += round[rank].forward.compute_s + round[rank].backward.compute_s;
    }
    seconds.copy_s -= std::min(seconds.copy_s, seconds.compute_s + waves_s / 2);
  }

  static SimulatedOperation Begin(char letter, const OperationSeconds& seconds) {
    return {
        .name = std::string(1, letter), .compute_s = seconds.compute_s + seconds.copy_s, .wire_s = seconds.Exposed()};
  }

  // Forwards come from the stage above and go to the one below; backwards the other way.
  void Connect(const Turn& turn, size_t rank, double message_s, SimulatedOperation& operation) {
    const bool forward = turn.letter == 'A' || turn.letter == 'F';
    // Number of what crosses the border above stage `below`.
    const auto message = [&](size_t below) {
      return messages_.Of(copy_, below, turn.cluster, turn.round, turn.letter, rank);
    };
    const bool from = forward ? stage_ > 0 : stage_ + 1 < pp_;
    const bool to = forward ? stage_ + 1 < pp_ : stage_ > 0;
    if (from) operation.needs = message(forward ? stage_ : stage_ + 1);
    if (to) operation.sends = {message(forward ? stage_ + 1 : stage_), message_s, forward};
  }

  void Append(SimulatedOperation operation, const OperationSeconds& seconds, size_t rank) {
    const size_t program = (copy_ * pp_ + stage_) * cp_ + rank;
    for (size_t axis = 0; axis < kNumAxes; ++axis) {
      made_.hidden_s[program][axis] += seconds.hidden_s[axis];
      made_.sent_bytes[program][axis] += seconds.sent_bytes[axis];
    }
    made_.message_s[program] += seconds.message_s;
    made_.programs[program].push_back(std::move(operation));
  }

  const MemoryOptions& options_;
  const PlannerModel& model_;
  const std::vector<PlannerGroup>& groups_;
  const size_t pp_, cp_;
  const std::vector<ModelShard> shards_;                        // of each stage
  std::vector<std::vector<OperationSeconds>> parameter_wires_;  // of each stage's operations; none: they are whole
  StepPrograms made_;
  Numbers<uint32_t, size_t, size_t, size_t, char, size_t> messages_;
  // By copy, stage, cluster, round and letter; of copies that share a group by the group, the helper and the stage.
  enum Kind : uint32_t { kOneCopy, kSharedGroup, kAllCopies };
  Numbers<uint32_t, size_t, size_t, size_t, char, uint32_t> meetings_;
  bool reduces_once_ = false;
  uint32_t copy_ = 0;
  size_t stage_ = 0;
  std::vector<CopyCluster> clusters_;
};

}  // namespace

StepPrograms ProgramsOf(const MemoryOptions& options, const PlannerModel& model,
                        const std::vector<PlannerGroup>& groups, const v1::StepPlan& step) {
  return Programs(options, model, groups).Of(step);
}

}  // namespace stemma::server
