#include "server/planner/stage_plan.h"

#include <algorithm>
#include <string>
#include <utility>

#include "common/cost/cluster_facts.h"
#include "common/cost/context_share.h"
#include "common/cost/pipeline_cost.h"
#include "common/cost/regather_bytes.h"
#include "server/planner/cost_model.h"
#include "server/planner/operation_work.h"
#include "server/planner/wave_packing.h"

namespace stemma::server {
namespace {

// One cluster's operations on each stage.
class ClusterStages {
 public:
  ClusterStages(const MemoryOptions& options, const std::vector<PlannerGroup>& groups, const v1::Cluster& cluster)
      : options_(options), cluster_(cluster), operations_(groups, cluster, options.shape.cp, options.forward_only) {
    for (const ByteShape& stage : options.all_stages()) regathers_.push_back(operations_.Regather(stage));
    for (size_t s = 0; s < regathers_.size(); ++s) like_.push_back(options.FirstLike(s));
  }

  StageCluster Run() {
    StageCluster stages;
    const bool borrows = cluster_.has_owner_rank();
    stages.stands_alone = IsSplit(cluster_);
    if (operations_.has_prefixes() || borrows) {
      stages.prefixes = OnEachStage([&](size_t s) {
        const ByteShape& stage = options_.all_stages()[s];
        return borrows ? BorrowedCost(stage) : PrefixCost(stage);
      });
    }
    const std::vector<std::vector<int>> waves = WavesByRank(cluster_, static_cast<int>(options_.shape.cp));
    for (size_t rank = 0; rank < waves.size(); ++rank) {
      for (size_t round = 0; round < waves[rank].size(); ++round) {
        if (round == stages.rounds.size()) stages.rounds.emplace_back(options_.all_stages().size());
        const v1::Wave& wave = cluster_.waves(waves[rank][round]);
        if (rank == 0 || !wave.cut_rows()) AddWave(wave, stages.rounds[round]);  // one that is cut is the same for all
      }
    }
    return stages;
  }

 private:
  // Asks for the costs of one stage, and gives them to the others that are like it.
  template <typename CostOf>
  StageCosts OnEachStage(const CostOf& cost_of) const {
    StageCosts costs;
    for (size_t s = 0; s < like_.size(); ++s) costs.push_back(like_[s] < s ? costs[like_[s]] : cost_of(s));
    return costs;
  }

  // Tells whether what a stage makes goes to another one: a gradient to the stage before, or, where there are none, the
  // hidden states to the next one.
  bool Sends(const ByteShape& stage) const { return options_.forward_only ? !stage.last_stage : !stage.first_stage; }

  // Sets what an operation hands on in so many messages, the largest of which has so many rows.
  void SetMessages(const ByteShape& stage, int64_t messages, int64_t rows, StageCost& cost) const {
    if (!Sends(stage)) return;
    cost.messages = messages;
    cost.message_bytes = RowsBetweenStagesBytes(stage, rows);
  }

  StageCost PrefixCost(const ByteShape& stage) const {
    const PrefixShape& prefix = operations_.prefix();
    const PrefixWork work = operations_.Prefixes(stage);
    StageCost cost = {.forward_s = Seconds(work.forward, options_.rates)};
    const bool shares = SharesRows(stage, prefix);
    const int64_t largest = shares ? ContextShare(stage, prefix).blocks().front().part : BlockRows(prefix);
    SetMessages(stage, NumBlocks(prefix), largest, cost);
    if (options_.forward_only) {
      cost.forward_bytes = ForwardPrefixBytes(stage, prefix).peak();
      cost.kept_bytes = ForwardKeptBytes(stage, prefix);
      return cost;
    }
    cost.backward_s = Seconds(work.backward, options_.rates);
    cost.forward_bytes = PrefixForwardBytes(stage, prefix).peak();
    cost.backward_bytes = PrefixBackwardBytes(stage, prefix).peak();
    cost.kept_bytes = PrefixKeptBytes(stage, prefix).peak();
    cost.output_bytes = PrefixPipelineSent(stage, prefix).forward;
    cost.host_bytes = HostTapeBytes(stage, prefix);
    return cost;
  }

  // A helper has the K/V of a prefix and their gradients, and no tape.
  StageCost BorrowedCost(const ByteShape& stage) const {
    const PrefixShape& prefix = operations_.prefix();
    const int64_t bytes =
        options_.forward_only ? ForwardKeptBytes(stage, prefix) : PrefixKeptBytes(stage, prefix).hot_set;
    return {.forward_bytes = bytes, .backward_bytes = bytes, .kept_bytes = bytes};
  }

  void AddWave(const v1::Wave& wave, StageCosts& round) const {
    const ClusterShape members = operations_.MembersOf(wave);
    const WaveShape shape = operations_.ShapeOf(wave, members);
    RaiseStageCosts(OnEachStage([&](size_t s) { return WaveCost(s, members, shape); }), round);
  }

  StageCost WaveCost(size_t s, const ClusterShape& members, const WaveShape& wave) const {
    const ByteShape& stage = options_.all_stages()[s];
    const BesideLayer beside = RegatherBytes(stage, operations_.prefix());
    WaveWork work = operations_.Wave(stage, members);
    // What gathering the prefixes again takes in a round.
    work.forward += regathers_[s].forward;
    StageCost cost = {.forward_s = Seconds(work.forward, options_.rates)};
    SetMessages(stage, 1, wave.rows, cost);
    if (options_.forward_only) {
      cost.forward_bytes = ForwardWaveBytes(stage, wave, beside);
      return cost;
    }
    work.both += regathers_[s].both;
    cost.backward_s = Seconds(work.both, options_.rates) - cost.forward_s;
    cost.forward_bytes = WaveBytesInForward(stage, wave, beside).peak();
    cost.backward_bytes = WaveBytesInBackward(stage, wave, beside).peak();
    cost.kept_bytes = WaveKeptBytes(stage, wave);
    return cost;
  }

  const MemoryOptions& options_;
  const v1::Cluster& cluster_;
  const ClusterOperations operations_;
  std::vector<WaveWork> regathers_;  // of each stage
  std::vector<size_t> like_;         // of each stage, the first one that costs the same
};

int64_t WithoutOutputs(const StageCost& cost) { return cost.kept_bytes - cost.output_bytes; }

}  // namespace

void RaiseStageCosts(const StageCosts& costs, StageCosts& most) {
  most.resize(costs.size());
  const auto raise = [](auto& number, auto other) { number = std::max(number, other); };
  for (size_t s = 0; s < costs.size(); ++s) {
    raise(most[s].forward_s, costs[s].forward_s);
    raise(most[s].backward_s, costs[s].backward_s);
    raise(most[s].forward_bytes, costs[s].forward_bytes);
    raise(most[s].backward_bytes, costs[s].backward_bytes);
    const int64_t stays = std::max(WithoutOutputs(most[s]), WithoutOutputs(costs[s]));
    raise(most[s].kept_bytes, costs[s].kept_bytes);
    most[s].output_bytes = most[s].kept_bytes - stays;
    raise(most[s].host_bytes, costs[s].host_bytes);
    raise(most[s].messages, costs[s].messages);
    raise(most[s].message_bytes, costs[s].message_bytes);
  }
}

StageQuestion StagesOf(const MemoryOptions& options, const std::vector<PlannerGroup>& groups,
                       const std::vector<const v1::Cluster*>& clusters) {
  StageQuestion question = {.stages = options.all_stages().size(),
                            .clusters = {},
                            .budget_bytes = options.budget_bytes,
                            .host_budget_bytes = options.host_bytes_max()};
  for (const v1::Cluster* cluster : clusters) {
    question.clusters.push_back(ClusterStages(options, groups, *cluster).Run());
  }
  return question;
}

// A stage holds the two newest, and the longest passes that the request may have are a wave, or the prefixes of a
// cluster.
int64_t RowsInFlightBytes(const MemoryOptions& options, const PlannerRequest& request) {
  constexpr int64_t kMessagesInFlight = 2;
  int64_t longest = 0, all = 0;
  for (const PlannerGroup& group : request.groups) {
    for (const PlannerRollout& rollout : group.rollouts) {
      if (!rollout.run) continue;
      const int64_t rows = group.prompt_tokens - 1 + rollout.response_tokens;
      longest = std::max(longest, rows);
      all += rows;
    }
  }
  const int64_t packed = std::max({options.wave_rows, options.cluster_prefix_rows, options.wave_suffixes * longest});
  return kMessagesInFlight * RowsBetweenStagesBytes(options.shape, std::min(all, std::max(longest, packed)));
}

double BubbleSeconds(const StageOrders& orders) {
  double least_s = orders.end_s;
  for (const StageRun& run : orders.stages) least_s = std::min(least_s, run.idle_s);
  return least_s;
}

void DescribeStages(const MemoryOptions& options, const StageOrders& orders, v1::RankReport& report) {
  report.set_pipeline_s(orders.end_s);
  report.set_bubble_s(BubbleSeconds(orders));
  for (size_t s = 0; s < orders.stages.size(); ++s) {
    const StageRun& run = orders.stages[s];
    v1::StageReport& stage = *report.add_stages();
    stage.set_layers(static_cast<uint32_t>(options.stages[s].config.num_layers));
    stage.set_seconds(run.busy_s);
    stage.set_idle_s(run.idle_s);
    stage.set_peak_bytes(static_cast<uint64_t>(run.peak_bytes + options.held_bytes));
    stage.set_host_bytes(static_cast<uint64_t>(run.host_peak_bytes));
  }
}

void AddCopyStages(uint32_t dp_rank, const StageOrders& orders, v1::StepPlan& step) {
  v1::CopyStages& copy = *step.add_copies();
  copy.set_dp_rank(dp_rank);
  for (const StageRun& run : orders.stages) copy.add_orders(run.Letters());
}

}  // namespace stemma::server
