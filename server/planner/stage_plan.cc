#include "server/planner/stage_plan.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "common/cost/pipeline_cost.h"
#include "server/planner/cost_model.h"
#include "server/planner/wave_cuts.h"
#include "server/planner/wave_packing.h"

namespace stemma::server {
namespace {

// One cluster's operations on each stage.
class ClusterStages {
 public:
  ClusterStages(const MemoryOptions& options, const std::vector<PlannerGroup>& groups, const v1::Cluster& cluster)
      : options_(options), groups_(groups), cluster_(cluster) {
    prefix_ = {.block_rows = cluster.prefix_block_rows(),
               .policy = cluster.prefix_policy(),
               .offload = cluster.offload_prefix(),
               .regather = cluster.regather_prefix()};
    for (const uint32_t g : cluster.prefix_groups()) {
      places_[g] = static_cast<int64_t>(shape_.prefix_rows.size());
      shape_.prefix_rows.push_back(groups[g].prompt_tokens - 1);
    }
    prefix_.lengths = shape_.prefix_rows;
    prefix_.rows = PackedPrefixRows(shape_);
  }

  StageCluster Run() {
    StageCluster stages;
    if (prefix_.rows > 0) {
      for (const ByteShape& stage : options_.stages) stages.prefixes.push_back(PrefixCost(stage));
    }
    for (const v1::Wave& wave : cluster_.waves()) {
      // The waves of a rank stand in the order of their rounds.
      const size_t round = rounds_of_ranks_[wave.cp_rank()]++;
      if (round == stages.rounds.size()) stages.rounds.emplace_back(options_.stages.size());
      AddWave(wave, stages.rounds[round]);
    }
    return stages;
  }

 private:
  StageCost PrefixCost(const ByteShape& stage) const {
    const ClusterWorkSums sums(stage, shape_);
    StageCost cost = {.forward_s = Seconds(sums.PrefixForward(prefix_), options_.rates)};
    if (options_.forward_only) {
      cost.forward_bytes = ForwardPrefixBytes(stage, prefix_).peak();
      cost.kept_bytes = ForwardKeptBytes(stage, prefix_);
      return cost;
    }
    cost.backward_s = Seconds(sums.PrefixBackward(prefix_), options_.rates);
    cost.forward_bytes = PrefixForwardBytes(stage, prefix_).peak();
    cost.backward_bytes = PrefixBackwardBytes(stage, prefix_).peak();
    cost.kept_bytes = PrefixKeptBytes(stage, prefix_).peak();
    cost.host_bytes = HostTapeBytes(stage, prefix_);
    return cost;
  }

  void AddWave(const v1::Wave& wave, StageCosts& round) const {
    ClusterShape members;
    for (const v1::WaveMember& member : wave.members()) members.members.push_back(ShapeOf(member));
    const WaveShape shape = WaveOf(members.members, wave.layout(), cluster_.suffix_policy());
    for (size_t s = 0; s < round.size(); ++s) RaiseTo(WaveCost(options_.stages[s], members, shape), round[s]);
  }

  StageCost WaveCost(const ByteShape& stage, const ClusterShape& members, const WaveShape& wave) const {
    const ClusterWorkSums sums(stage, members);
    const BesideLayer beside = RegatherBytes(stage, prefix_);
    if (options_.forward_only) {
      return {.forward_s = RoundSeconds(sums, sums.SuffixForwardOnly(1), /*forward_only=*/true),
              .forward_bytes = ForwardWaveBytes(stage, wave, beside)};
    }
    StageCost cost = {.forward_s = RoundSeconds(sums, sums.SuffixForwardOfStep(1), /*forward_only=*/true)};
    cost.backward_s =
        RoundSeconds(sums, sums.Suffix(cluster_.suffix_policy(), 1), /*forward_only=*/false) - cost.forward_s;
    cost.forward_bytes = cost.backward_bytes = WaveBytes(stage, wave, beside).peak();
    cost.kept_bytes = WaveKeptBytes(stage, wave);
    return cost;
  }

  // Adds what gathering the prefixes again takes in a round.
  double RoundSeconds(const ClusterWorkSums& sums, Work work, bool forward_only) const {
    if (prefix_.regather) work += sums.Regather(prefix_, /*rounds=*/1, forward_only);
    return Seconds(work, options_.rates);
  }

  MemberShape ShapeOf(const v1::WaveMember& member) const {
    const PlannerGroup& group = groups_[member.group()];
    const auto place = places_.find(member.group());
    return {.rows = group.rollouts[member.rollout()].response_tokens,
            .prefix_rows = group.prompt_tokens - 1,
            .dense = place == places_.end(),
            .prefix = place == places_.end() ? 0 : place->second};
  }

  static void RaiseTo(const StageCost& cost, StageCost& most) {
    const auto raise = [](auto& number, auto other) { number = std::max(number, other); };
    raise(most.forward_s, cost.forward_s);
    raise(most.backward_s, cost.backward_s);
    raise(most.forward_bytes, cost.forward_bytes);
    raise(most.backward_bytes, cost.backward_bytes);
    raise(most.kept_bytes, cost.kept_bytes);
  }

  const MemoryOptions& options_;
  const std::vector<PlannerGroup>& groups_;
  const v1::Cluster& cluster_;
  ClusterShape shape_;  // its prefixes
  PrefixShape prefix_;
  absl::flat_hash_map<uint32_t, int64_t> places_;          // of groups among the prefixes
  absl::flat_hash_map<uint32_t, size_t> rounds_of_ranks_;  // waves so far of each context-parallel rank
};

}  // namespace

StageQuestion StagesOf(const MemoryOptions& options, const std::vector<PlannerGroup>& groups,
                       const std::vector<const v1::Cluster*>& clusters) {
  StageQuestion question = {.stages = options.stages.size(),
                            .clusters = {},
                            .budget_bytes = options.budget_bytes,
                            .host_budget_bytes = options.host_bytes_max()};
  for (const v1::Cluster* cluster : clusters) {
    question.clusters.push_back(ClusterStages(options, groups, *cluster).Run());
  }
  return question;
}

// A stage holds the two newest, of the longest passes that the request may have: a wave, or the prefixes of a cluster.
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
  const int64_t packed = std::max({kWaveRows, kClusterPrefixRows, options.wave_suffixes * longest});
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
