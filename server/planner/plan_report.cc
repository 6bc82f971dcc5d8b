#include "server/planner/plan_report.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/planner/split_cost.h"

namespace stemma::server {
namespace {

void Fill(const PhaseBytes& bytes, int64_t peak_with_headroom, int64_t host_bytes, v1::PhaseBytes& report) {
  report.set_hot_set(static_cast<uint64_t>(bytes.hot_set));
  report.set_dormant_set(static_cast<uint64_t>(bytes.dormant_set));
  report.set_wave_tape(static_cast<uint64_t>(bytes.wave_tape));
  report.set_working_set(static_cast<uint64_t>(bytes.working_set));
  report.set_peak(static_cast<uint64_t>(bytes.peak()));
  report.set_peak_with_headroom(static_cast<uint64_t>(peak_with_headroom));
  report.set_host(static_cast<uint64_t>(host_bytes));
}

}  // namespace

void DescribeMemory(const MemoryOptions& options, const MemoryChoice& choice, v1::ClusterReport& report) {
  report.set_memory_reason(MemoryReason(options, choice));
  const HeadroomPeaks peaks = PeaksWithHeadroom(options, choice);
  Fill(choice.suffix, peaks.suffix, choice.host_bytes, *report.mutable_suffix());
  v1::PhaseSeconds& seconds = *report.mutable_seconds();
  seconds.set_prefix_forward(choice.seconds.prefix_forward);
  seconds.set_suffix(choice.seconds.suffix);
  seconds.set_prefix_backward(choice.seconds.prefix_backward);
  if (!options.forward_only) report.set_suffix_policy(choice.way.suffix_policy);
  if (choice.way.prefix.rows == 0) return;
  report.set_prefix_block_rows(static_cast<uint32_t>(choice.way.prefix.block_rows));
  Fill(choice.prefix_forward, peaks.prefix_forward, choice.host_bytes, *report.mutable_prefix_forward());
  if (options.forward_only) return;
  report.set_prefix_policy(choice.way.prefix.policy);
  report.set_offload_prefix(choice.way.prefix.offload);
  Fill(choice.prefix_backward, peaks.prefix_backward, choice.host_bytes, *report.mutable_prefix_backward());
}

void DescribeState(const StateBytes& state, v1::OptimizerResidency residency, v1::StateBytes& report) {
  report.set_weights(static_cast<uint64_t>(state.weights));
  report.set_gradients(static_cast<uint64_t>(state.gradients));
  report.set_optimizer(static_cast<uint64_t>(state.optimizer));
  report.set_tables(static_cast<uint64_t>(state.tables));
  report.set_exchange(static_cast<uint64_t>(state.exchange));
  report.set_device(static_cast<uint64_t>(state.device(residency)));
  report.set_host(static_cast<uint64_t>(state.host(residency)));
  report.set_apply(static_cast<uint64_t>(state.apply(residency)));
}

void DescribeRates(const Rates& rates, v1::Rates& report) {
  report.set_linear(rates[kLinear]);
  report.set_attention_forward(rates[kAttentionForward]);
  report.set_attention_backward(rates[kAttentionBackward]);
  report.set_head(rates[kHead]);
  report.set_element(rates[kElement]);
  report.set_merge(rates[kMerge]);
  report.set_wave(rates[kWave]);
  report.set_parameter(rates[kParameter]);
  report.set_copy(rates[kCopy]);
  report.set_wave_backward(rates[kWaveBackward]);
  report.set_score_block(rates[kScoreBlock]);
  report.set_sent(rates[kTensorByte]);
  report.set_collective(rates[kTensorCollective]);
  report.set_sent_context(rates[kContextByte]);
  report.set_collective_context(rates[kContextCollective]);
  report.set_sent_stage(rates[kStageByte]);
  report.set_message_stage(rates[kStageMessage]);
  report.set_sent_data(rates[kDataByte]);
  report.set_collective_data(rates[kDataCollective]);
  report.set_sent_part(rates[kPartByte]);
  report.set_message_part(rates[kPartMessage]);
  report.set_samples(static_cast<uint32_t>(rates.samples));
  report.set_calibrated(rates.calibrated);
}

void MaxSeconds(const v1::PhaseSeconds& seconds, v1::PhaseSeconds& most) {
  most.set_prefix_forward(std::max(most.prefix_forward(), seconds.prefix_forward()));
  most.set_suffix(std::max(most.suffix(), seconds.suffix()));
  most.set_prefix_backward(std::max(most.prefix_backward(), seconds.prefix_backward()));
  most.set_apply(std::max(most.apply(), seconds.apply()));
}

void AddSeconds(const v1::PhaseSeconds& seconds, v1::PhaseSeconds& total) {
  total.set_prefix_forward(total.prefix_forward() + seconds.prefix_forward());
  total.set_suffix(total.suffix() + seconds.suffix());
  total.set_prefix_backward(total.prefix_backward() + seconds.prefix_backward());
  total.set_apply(total.apply() + seconds.apply());
}

void DescribeSplit(const MemoryOptions& options, const PackingGroup& group, const GroupSplit& split,
                   const SharedGroup& shared, v1::SplitGroup& report) {
  const PartBytes bytes = PartBytesOf(options.shape, group.prefix_rows, options.forward_only);
  const size_t helpers = split.ranks.size() - 1;
  report.set_uid(group.uid);
  report.mutable_ranks()->Add(split.ranks.begin(), split.ranks.end());
  for (const std::vector<uint32_t>& rollouts : split.rollouts) {
    report.add_rollouts(static_cast<uint32_t>(rollouts.size()));
  }
  // Each tensor-parallel rank sends those of its own heads, each context-parallel one those of all rows.
  const int64_t ranks = options.shape.tp * options.shape.cp;
  report.set_bytes(helpers * static_cast<uint64_t>(ranks * (bytes.kv + bytes.gradients)));
  report.set_seconds(static_cast<double>(helpers) * (shared.send_s + shared.return_s));
}

std::string SplitReason(const v1::Cluster& cluster) {
  if (cluster.has_owner_rank()) return absl::StrCat("split: helps rank ", cluster.owner_rank());
  if (cluster.helper_ranks().empty()) return "";
  const bool one = cluster.helper_ranks_size() == 1;
  return absl::StrCat("split: rank", one ? " " : "s ", absl::StrJoin(cluster.helper_ranks(), ", "),
                      one ? " helps" : " help");
}

void CountGroup(int64_t rows, bool is_part, v1::RankReport& report) {
  report.set_groups(report.groups() + 1);
  report.set_parts(report.parts() + (is_part ? 1 : 0));
  report.set_tokens_computed(report.tokens_computed() + static_cast<uint64_t>(rows));
}

void RaisePeaks(int64_t peak_bytes, int64_t with_headroom_bytes, const MemoryOptions& memory, v1::StepReport& report,
                v1::RankReport& rank_report) {
  const auto peak = static_cast<uint64_t>(peak_bytes + memory.held_bytes);
  const auto with_headroom = static_cast<uint64_t>(with_headroom_bytes + memory.held_bytes);
  rank_report.set_peak_bytes(std::max(rank_report.peak_bytes(), peak));
  report.set_peak_bytes(std::max(report.peak_bytes(), peak));
  report.set_peak_bytes_with_headroom(std::max(report.peak_bytes_with_headroom(), with_headroom));
}

void AddToTotals(const v1::StepReport& step, v1::PlanReport& report) {
  report.set_num_clusters(report.num_clusters() + static_cast<uint32_t>(step.clusters_size()));
  report.set_num_waves(report.num_waves() + step.num_waves());
  report.set_tokens_logical(report.tokens_logical() + step.tokens_logical());
  report.set_tokens_computed(report.tokens_computed() + step.tokens_computed());
  report.set_flops(report.flops() + step.flops());
  report.set_flops_dense(report.flops_dense() + step.flops_dense());
  report.set_peak_bytes(std::max(report.peak_bytes(), step.peak_bytes()));
  report.set_peak_bytes_with_headroom(std::max(report.peak_bytes_with_headroom(), step.peak_bytes_with_headroom()));
  AddSeconds(step.seconds(), *report.mutable_seconds());
  report.set_pipeline_s(report.pipeline_s() + step.pipeline_s());
  report.set_parameters_bytes(report.parameters_bytes() + step.parameters_bytes());
  report.set_parameters_s(report.parameters_s() + step.parameters_s());
}

}  // namespace stemma::server
