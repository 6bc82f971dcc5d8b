#include "server/protocol/step_metrics.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string_view>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"

namespace stemma::server {
namespace {

using Sums = google::protobuf::Map<std::string, double>;

std::optional<double> Find(const Sums& sums, const char* name) {
  const auto it = sums.find(name);
  if (it == sums.end()) return std::nullopt;
  return it->second;
}

void SetQuotient(const char* name, std::optional<double> numerator, std::optional<double> denominator,
                 Metrics& metrics) {
  if (numerator && denominator && *denominator != 0) metrics[name] = *numerator / *denominator;
}

void SetActorMetrics(const StepMetricsInput& input, Metrics& metrics) {
  const Sums& sums = input.vote.sums();
  const v1::LossConfig& loss = input.header.loss();
  const std::optional<double> tokens = Find(sums, "count/tokens");
  const std::optional<double> pg = Find(sums, "loss/pg");
  const std::optional<double> kl = Find(sums, "loss/kl");
  const std::optional<double> entropy = Find(sums, "loss/entropy");
  double total = pg.value_or(0);
  if (pg) metrics["actor/pg_loss"] = *pg;
  if (kl && loss.has_kl_loss_coef()) {
    metrics["actor/kl_loss"] = *kl;
    metrics["actor/kl_coef"] = loss.kl_loss_coef();
    total += loss.kl_loss_coef() * *kl;
  }
  if (entropy) {
    metrics["actor/entropy_loss"] = *entropy;
    total -= loss.entropy_coeff() * *entropy;
  }
  metrics["actor/loss"] = total;
  SetQuotient("actor/pg_clipfrac", Find(sums, "count/clip"), tokens, metrics);
  SetQuotient("actor/pg_clipfrac_lower", Find(sums, "count/clip_lower"), tokens, metrics);
  SetQuotient("actor/ppo_kl", Find(sums, "sum/neg_log_ratio"), tokens, metrics);
  SetQuotient("actor/entropy", Find(sums, "sum/entropy"), tokens, metrics);
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
  struct Phase {
    const char *predicted, *measured, *sum;
    uint64_t bytes;
  };
  for (const Phase& phase :
       {Phase{"predicted/state_bytes", "measured/state_bytes", "bytes/state", input.state.device()},
        Phase{"predicted/prefix_forward_bytes", "measured/prefix_forward_bytes", "bytes/prefix_forward", forward},
        Phase{"predicted/suffix_bytes", "measured/suffix_bytes", "bytes/suffix", suffix},
        Phase{"predicted/prefix_backward_bytes", "measured/prefix_backward_bytes", "bytes/prefix_backward", backward},
        Phase{"predicted/host_bytes", "measured/host_bytes", "bytes/host", host}}) {
    metrics[phase.predicted] = static_cast<double>(phase.bytes);
    if (const auto measured = Find(input.vote.sums(), phase.sum)) metrics[phase.measured] = *measured;
  }
}

// What an offloaded tape did; there only where one was.
void SetOffloadMetrics(const StepMetricsInput& input, Metrics& metrics) {
  if (Find(input.vote.sums(), "offload/bytes_out").value_or(0) == 0) return;
  for (const char* name : {"offload/bytes_out", "offload/bytes_in", "offload/demand_loads", "offload/waits"}) {
    if (const auto value = Find(input.vote.sums(), name)) metrics[name] = *value;
  }
}

void SetWorkMetrics(const StepMetricsInput& input, Metrics& metrics) {
  const Sums& sums = input.vote.sums();
  const double logical = Find(sums, "tokens/logical").value_or(0);
  const double computed = Find(sums, "tokens/computed").value_or(0);
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
  if (const auto peak = Find(sums, "bytes/peak")) metrics["plan/measured_bytes"] = *peak;
  SetPhaseBytes(input, metrics);
  SetOffloadMetrics(input, metrics);
}

// Sets the quotients of sums that stand in `metrics` already, a step's or a request's.
void SetRates(Metrics& metrics) {
  const std::optional<double> seconds = Find(metrics, "perf/actor/time_per_step");
  SetQuotient("perf/actor/throughput", Find(metrics, "perf/actor/total_num_tokens"), seconds, metrics);
  const std::optional<double> flops = Find(metrics, "perf/actor/flops");
  if (flops) SetQuotient("perf/actor/tflops", *flops / 1e12, seconds, metrics);
}

void SetTimeMetrics(const StepMetricsInput& input, Metrics& metrics) {
  for (const char* name : {"time/prefix_forward_s", "time/suffix_s", "time/prefix_backward_s"}) {
    if (const auto seconds = Find(input.vote.sums(), name)) metrics[name] = *seconds;
  }
  metrics["time/apply_s"] = input.apply_s;
  const v1::PhaseSeconds& predicted = input.report.seconds();
  metrics["predicted/prefix_forward_s"] = predicted.prefix_forward();
  metrics["predicted/suffix_s"] = predicted.suffix();
  metrics["predicted/prefix_backward_s"] = predicted.prefix_backward();
  metrics["predicted/apply_s"] = predicted.apply();
  const double elapsed_s = absl::ToDoubleSeconds(input.elapsed);
  metrics["perf/actor/time_per_step"] = elapsed_s;
  metrics["perf/actor/total_num_tokens"] = static_cast<double>(input.numbers.total_tokens);
  metrics["perf/actor/flops"] = input.report.flops();
  metrics["perf/actor/flops_dense"] = input.report.flops_dense();
  SetRates(metrics);
}

bool IsSum(absl::string_view name) {
  return absl::StartsWith(name, "time/") || absl::EndsWith(name, "_s") || absl::StartsWith(name, "prefix/tokens_") ||
         absl::StartsWith(name, "offload/") || absl::StartsWith(name, "perf/actor/");
}

bool IsMaximum(absl::string_view name) { return absl::EndsWith(name, "_bytes"); }

}  // namespace

void SetStepMetrics(const StepMetricsInput& input, Metrics& metrics) {
  SetActorMetrics(input, metrics);
  SetWorkMetrics(input, metrics);
  SetTimeMetrics(input, metrics);
}

internal::v1::Vote EmptyVote(const StepNumbers& numbers) {
  internal::v1::Vote vote;
  for (const char* name :
       {"loss/pg", "loss/kl", "loss/entropy", "sum/entropy", "count/clip", "count/clip_lower", "sum/neg_log_ratio",
        "tokens/computed", "tokens/logical", "time/prefix_forward_s", "time/suffix_s", "time/prefix_backward_s",
        "bytes/prefix_forward", "bytes/suffix", "bytes/prefix_backward", "bytes/host", "bytes/peak"}) {
    (*vote.mutable_sums())[name] = 0;
  }
  (*vote.mutable_sums())["count/tokens"] = static_cast<double>(numbers.loss_tokens);
  return vote;
}

void SetRequestMetrics(const v1::UpdateResult& result, Metrics& metrics) {
  const bool applied = std::any_of(result.steps().begin(), result.steps().end(), [](const v1::StepResult& step) {
    return step.outcome() == v1::StepResult::APPLIED;
  });
  const v1::StepResult::Outcome counted = applied ? v1::StepResult::APPLIED : v1::StepResult::SKIPPED_EMPTY;
  std::map<std::string, int> counts;
  for (const v1::StepResult& step : result.steps()) {
    if (step.outcome() != counted) continue;
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
