#include "server/protocol/step_metrics.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "server/protocol/expert_load.h"

namespace stemma::server {
namespace {

using internal::v1::StepSums;

std::optional<double> Find(const Metrics& metrics, const char* name) {
  const auto it = metrics.find(name);
  if (it == metrics.end()) return std::nullopt;
  return it->second;
}

double Number(uint64_t count) { return static_cast<double>(count); }

void SetQuotient(const char* name, std::optional<double> numerator, std::optional<double> denominator,
                 Metrics& metrics) {
  if (numerator && denominator && *denominator != 0) metrics[name] = *numerator / *denominator;
}

void SetActorMetrics(const StepMetricsInput& input, Metrics& metrics) {
  const StepSums& sums = input.vote.sums();
  const v1::LossConfig& loss = input.header.loss();
  const double tokens = Number(sums.loss_tokens());
  double total = sums.policy_loss();
  metrics["actor/pg_loss"] = sums.policy_loss();
  if (loss.has_kl_loss_coef()) {
    metrics["actor/kl_loss"] = sums.kl_loss();
    metrics["actor/kl_coef"] = loss.kl_loss_coef();
    total += loss.kl_loss_coef() * sums.kl_loss();
  }
  if (loss.has_entropy_coeff()) {
    metrics["actor/entropy_loss"] = sums.entropy_loss();
    total -= loss.entropy_coeff() * sums.entropy_loss();
  }
  metrics["actor/loss"] = total;
  SetQuotient("actor/pg_clipfrac", Number(sums.clipped_tokens()), tokens, metrics);
  SetQuotient("actor/pg_clipfrac_lower", Number(sums.clipped_lower_tokens()), tokens, metrics);
  SetQuotient("actor/ppo_kl", sums.neg_log_ratio_nats(), tokens, metrics);
  SetQuotient("actor/entropy", sums.entropy_nats(), tokens, metrics);
  SetQuotient("actor/token_coverage", tokens, static_cast<double>(input.numbers.loss_tokens), metrics);
  metrics["actor/grad_norm"] = std::sqrt(input.vote.grad_norm_squared());
  metrics["actor/lr"] = input.header.adam().learning_rate();
}

// Each phase's highest, over the step's clusters, beside what the worker's allocator counted.
void SetPhaseBytes(const StepMetricsInput& input, Metrics& metrics) {
  uint64_t forward = 0, suffix = 0, backward = 0, host = 0;
  for (const v1::ClusterReport& cluster : input.report.clusters()) {
    forward = std::max(forward, cluster.prefix_forward().peak());
    suffix = std::max(suffix, cluster.suffix().peak());
    backward = std::max(backward, cluster.prefix_backward().peak());
    host = std::max(host, cluster.suffix().host());
  }
  const StepSums& sums = input.vote.sums();
  metrics["predicted/state_bytes"] = Number(input.state.device());
  if (sums.state_bytes() > 0) metrics["measured/state_bytes"] = Number(sums.state_bytes());
  metrics["predicted/prefix_forward_bytes"] = Number(forward);
  metrics["measured/prefix_forward_bytes"] = Number(sums.prefix_forward_bytes());
  metrics["predicted/suffix_bytes"] = Number(suffix);
  metrics["measured/suffix_bytes"] = Number(sums.suffix_bytes());
  metrics["predicted/prefix_backward_bytes"] = Number(backward);
  metrics["measured/prefix_backward_bytes"] = Number(sums.prefix_backward_bytes());
  metrics["predicted/host_bytes"] = Number(host);
  metrics["measured/host_bytes"] = Number(sums.host_bytes());
}

// What an offloaded tape did; there only where one was.
void SetOffloadMetrics(const StepSums& sums, Metrics& metrics) {
  if (sums.offload_out_bytes() == 0) return;
  metrics["offload/bytes_out"] = Number(sums.offload_out_bytes());
  metrics["offload/bytes_in"] = Number(sums.offload_in_bytes());
  metrics["offload/demand_loads"] = Number(sums.offload_demand_loads());
  metrics["offload/waits"] = Number(sums.offload_waits());
}

void SetWorkMetrics(const StepMetricsInput& input, Metrics& metrics) {
  const StepSums& sums = input.vote.sums();
  const double logical = Number(sums.logical_rows()), computed = Number(sums.computed_rows());
  metrics["prefix/tokens_logical"] = logical;
  metrics["prefix/tokens_computed"] = computed;
  metrics["prefix/tokens_saved"] = logical - computed;
  SetQuotient("prefix/token_ratio", logical, computed, metrics);
  int groups_dense = 0;
  for (const v1::ClusterReport& cluster : input.report.clusters()) groups_dense += cluster.dense_uids_size();
  metrics["plan/groups_dense"] = groups_dense;
  metrics["plan/groups_empty"] = input.numbers.empty.count;
  metrics["plan/predicted_bytes"] = static_cast<double>(input.report.peak_bytes());
  metrics["plan/predicted_with_headroom_bytes"] = static_cast<double>(input.report.peak_bytes_with_headroom());
  metrics["plan/measured_bytes"] = Number(sums.peak_bytes());
  SetPhaseBytes(input, metrics);
  SetOffloadMetrics(sums, metrics);
}

// Sets the quotients of sums that stand in `metrics` already, a step's or a request's.
void SetRates(Metrics& metrics) {
  const std::optional<double> seconds = Find(metrics, "perf/actor/time_per_step");
  SetQuotient("perf/actor/throughput", Find(metrics, "perf/actor/total_num_tokens"), seconds, metrics);
  const std::optional<double> flops = Find(metrics, "perf/actor/flops");
  if (flops) SetQuotient("perf/actor/tflops", *flops / 1e12, seconds, metrics);
}

double PhaseSeconds(const StepSums& sums) {
  return sums.prefix_forward_s() + sums.suffix_s() + sums.prefix_backward_s();
}

// Returns what the pass for log-probs added to the step. Copies of the model do not meet behind it: one's pass may run
// beside another's phases.
double AddedByLogProbs(std::span<const internal::v1::Vote> votes) {
  double with_pass_s = 0, phases_s = 0;
  for (const internal::v1::Vote& vote : votes) {
    phases_s = std::max(phases_s, PhaseSeconds(vote.sums()));
    with_pass_s = std::max(with_pass_s, vote.sums().log_probs_s() + PhaseSeconds(vote.sums()));
  }
  return with_pass_s - phases_s;
}

void SetTimeMetrics(const StepMetricsInput& input, Metrics& metrics) {
  const StepSums& sums = input.vote.sums();
  metrics["time/prefix_forward_s"] = sums.prefix_forward_s();
  metrics["time/suffix_s"] = sums.suffix_s();
  metrics["time/prefix_backward_s"] = sums.prefix_backward_s();
  metrics["time/apply_s"] = input.apply_s;
  const v1::PhaseSeconds& predicted = input.report.seconds();
  metrics["predicted/prefix_forward_s"] = predicted.prefix_forward();
  metrics["predicted/suffix_s"] = predicted.suffix();
  metrics["predicted/prefix_backward_s"] = predicted.prefix_backward();
  metrics["predicted/apply_s"] = predicted.apply();
  // A pass for log-probs is no part of the update, in whose FLOPs and rows it does not count either.
  SetLogProbSeconds(sums, metrics);
  const double elapsed_s = absl::ToDoubleSeconds(input.elapsed);
  metrics["perf/actor/time_per_step"] = std::max(0.0, elapsed_s - AddedByLogProbs(input.votes));
  metrics["perf/actor/total_num_tokens"] = static_cast<double>(input.numbers.total_tokens);
  metrics["perf/actor/flops"] = input.report.flops();
  metrics["perf/actor/flops_dense"] = input.report.flops_dense();
  SetRates(metrics);
}

// What several ranks cost beside their own work, and how evenly that was dealt.
void SetRankMetrics(const StepMetricsInput& input, Metrics& metrics) {
  if (input.votes.size() < 2) return;
  metrics["time/agree_s"] = input.vote.sums().agree_s();
  metrics["time/reduce_s"] = input.vote.sums().reduce_s();
  metrics["time/reduce_overlapped_s"] = input.vote.sums().reduce_overlapped_s();
  metrics["ranks/reduce_bytes"] = Number(input.vote.sums().reduce_bytes());
  if (input.vote.sums().split_bytes() > 0) {
    metrics["time/split_s"] = input.vote.sums().split_s();
    metrics["ranks/split_bytes"] = Number(input.vote.sums().split_bytes());
  }
  if (input.vote.sums().tensor_parallel_bytes() > 0) {
    metrics["time/tensor_parallel_s"] = input.vote.sums().tensor_parallel_s();
    metrics["ranks/tensor_parallel_bytes"] = Number(input.vote.sums().tensor_parallel_bytes());
  }
  if (input.vote.sums().context_parallel_bytes() > 0) {
    metrics["time/context_parallel_s"] = input.vote.sums().context_parallel_s();
    metrics["ranks/context_parallel_bytes"] = Number(input.vote.sums().context_parallel_bytes());
  }
  if (input.vote.sums().pipeline_bytes() > 0) {
    metrics["time/pipeline_s"] = input.vote.sums().pipeline_s();
    metrics["ranks/pipeline_bytes"] = Number(input.vote.sums().pipeline_bytes());
  }
  if (input.vote.sums().parameters_bytes() > 0) {
    metrics["time/parameters_s"] = input.vote.sums().parameters_s();
    metrics["ranks/parameters_bytes"] = Number(input.vote.sums().parameters_bytes());
  }
  double gather_s = 0, gather_bytes = 0;
  for (const internal::v1::Applied& applied : input.applied) {
    gather_s = std::max(gather_s, applied.gather_s());
    gather_bytes += Number(applied.gather_bytes());
  }
  metrics["time/gather_s"] = gather_s;
  metrics["ranks/gather_bytes"] = gather_bytes;
  std::vector<double> phases_s;
  for (const internal::v1::Vote& vote : input.votes) phases_s.push_back(PhaseSeconds(vote.sums()));
  const auto [fastest, slowest] = std::minmax_element(phases_s.begin(), phases_s.end());
  metrics["time/fastest_rank_s"] = *fastest;
  metrics["time/slowest_rank_s"] = *slowest;
}

bool IsSum(absl::string_view name) {
  return absl::StartsWith(name, "time/") || absl::EndsWith(name, "_s") || absl::StartsWith(name, "prefix/tokens_") ||
         absl::StartsWith(name, "offload/") || absl::StartsWith(name, "perf/actor/");
}

bool IsMaximum(absl::string_view name) {
  return absl::EndsWith(name, "_bytes") || absl::EndsWith(name, "_off") || absl::EndsWith(name, "_load_max");
}

}  // namespace

void SetLogProbSeconds(const StepSums& sums, Metrics& metrics) {
  if (sums.log_probs_s() > 0) metrics["time/log_probs_s"] = sums.log_probs_s();
}

void SetStepMetrics(const StepMetricsInput& input, Metrics& metrics) {
  SetActorMetrics(input, metrics);
  SetWorkMetrics(input, metrics);
  SetTimeMetrics(input, metrics);
  SetRankMetrics(input, metrics);
  SetExpertMetrics(input.vote, input.expert_sets, metrics);
  if (input.kernels_off) metrics["ranks/kernels_off"] = Number(*input.kernels_off);
}

void SetRequestMetrics(const v1::UpdateResult& result, Metrics& metrics) {
  const bool applied = std::any_of(result.steps().begin(), result.steps().end(), [](const v1::StepResult& step) {
    return step.outcome() == v1::StepResult::APPLIED;
  });
  const v1::StepResult::Outcome counted = applied ? v1::StepResult::APPLIED : v1::StepResult::SKIPPED_EMPTY;
  std::map<std::string, int> counts;
  for (const v1::StepResult& step : result.steps()) {
    if (step.outcome() != counted) {
      // The pass for log-probs is the whole request's, and in its first step whatever became of that.
      if (step.metrics().contains("time/log_probs_s")) {
        metrics["time/log_probs_s"] += step.metrics().at("time/log_probs_s");
      }
      continue;
    }
    for (const auto& [name, value] : step.metrics()) {
      double& total = metrics[name];
      if (IsMaximum(name)) {
        total = std::max(total, value);
      } else {
        total += value;
      }
      ++counts[name];
    }
  }
  for (const auto& [name, count] : counts) {
    if (!IsSum(name) && !IsMaximum(name)) metrics[name] /= count;
  }
  SetQuotient("prefix/token_ratio", Find(metrics, "prefix/tokens_logical"), Find(metrics, "prefix/tokens_computed"),
              metrics);
  SetRates(metrics);
}

}  // namespace stemma::server
