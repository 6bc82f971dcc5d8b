// Metrics of a step and of a request, by hand.
#include "server/protocol/step_metrics.h"

#include <set>
#include <string>

#include "gtest/gtest.h"

namespace stemma::server {
namespace {

internal::v1::Vote MakeVote() {
  internal::v1::Vote vote;
  internal::v1::StepSums& sums = *vote.mutable_sums();
  sums.set_policy_loss(0.5);
  sums.set_kl_loss(2);
  sums.set_entropy_loss(3);
  sums.set_loss_tokens(10);
  sums.set_clipped_tokens(4);
  sums.set_clipped_lower_tokens(1);
  sums.set_neg_log_ratio_nats(-5);
  sums.set_entropy_nats(20);
  sums.set_computed_rows(50);
  sums.set_logical_rows(200);
  sums.set_prefix_forward_s(0.75);
  sums.set_suffix_s(1.5);
  sums.set_prefix_backward_s(1.25);
  sums.set_peak_bytes(4096);
  sums.set_prefix_forward_bytes(1000);
  sums.set_suffix_bytes(3000);
  sums.set_prefix_backward_bytes(2000);
  sums.set_host_bytes(60);
  vote.set_grad_norm_squared(9);
  return vote;
}

v1::UpdateHeader MakeHeader() {
  v1::UpdateHeader header;
  header.mutable_loss()->set_kl_loss_coef(0.1);
  header.mutable_loss()->set_entropy_coeff(0.01);
  header.mutable_adam()->set_learning_rate(1e-6);
  return header;
}

struct Ranks {
  std::vector<internal::v1::Vote> votes = {};
  std::vector<internal::v1::Applied> applied = {};
  std::optional<size_t> kernels_off = {};
};

Metrics StepMetrics(const internal::v1::Vote& vote, absl::Duration elapsed = absl::Seconds(2),
                    const v1::UpdateHeader& header = MakeHeader(), const Ranks& ranks = {}) {
  v1::StepReport report;
  report.set_peak_bytes(5000);
  report.set_flops(4e12);
  report.set_flops_dense(1e13);
  report.set_peak_bytes_with_headroom(6000);
  report.add_clusters()->add_dense_uids("g");
  report.mutable_clusters(0)->mutable_suffix()->set_peak(2900);
  report.mutable_clusters(0)->mutable_suffix()->set_host(70);
  report.add_clusters()->mutable_suffix()->set_peak(2000);
  report.mutable_clusters(1)->mutable_prefix_forward()->set_peak(900);
  report.mutable_seconds()->set_prefix_forward(0.125);
  report.mutable_seconds()->set_suffix(1.25);
  report.mutable_seconds()->set_prefix_backward(0.375);
  report.mutable_seconds()->set_apply(0.5);
  const StepNumbers numbers = {.denominator = 10, .rollout_weights = {}, .total_tokens = 300, .loss_tokens = 40};
  v1::StateBytes state;
  state.set_device(12000);
  Metrics metrics;
  SetStepMetrics({.header = header,
                  .report = report,
                  .state = state,
                  .numbers = numbers,
                  .vote = vote,
                  .apply_s = 0.25,
                  .elapsed = elapsed,
                  .votes = ranks.votes,
                  .applied = ranks.applied,
                  .kernels_off = ranks.kernels_off},
                 metrics);
  return metrics;
}

TEST(StepMetricsTest, SeveralRanksSayWhatTheyCostAndHowEvenTheirWorkIs) {
  EXPECT_FALSE(StepMetrics(MakeVote()).contains("time/agree_s")) << "one rank waits for nobody";
  Ranks ranks = {.votes = std::vector(2, MakeVote()), .applied = std::vector<internal::v1::Applied>(2)};  // 3.5 s each
  ranks.votes[1].mutable_sums()->set_suffix_s(0.5);
  internal::v1::Vote merged = MakeVote();
  merged.mutable_sums()->set_agree_s(1);
  merged.mutable_sums()->set_reduce_s(0.25);
  merged.mutable_sums()->set_reduce_overlapped_s(0.375);
  merged.mutable_sums()->set_reduce_bytes(1000);
  merged.mutable_sums()->set_split_s(0.75);
  merged.mutable_sums()->set_split_bytes(600);
  merged.mutable_sums()->set_tensor_parallel_s(0.875);
  merged.mutable_sums()->set_tensor_parallel_bytes(800);
  merged.mutable_sums()->set_context_parallel_s(0.8125);
  merged.mutable_sums()->set_context_parallel_bytes(900);
  ranks.applied[0].set_gather_s(0.125);
  ranks.applied[1].set_gather_s(0.0625);
  ranks.applied[0].set_gather_bytes(300);
  ranks.applied[1].set_gather_bytes(400);
  const Metrics metrics = StepMetrics(merged, absl::Seconds(2), MakeHeader(), ranks);
  EXPECT_DOUBLE_EQ(metrics.at("time/agree_s"), 1);
  EXPECT_DOUBLE_EQ(metrics.at("time/reduce_s"), 0.25);
  EXPECT_DOUBLE_EQ(metrics.at("time/reduce_overlapped_s"), 0.375);
  EXPECT_DOUBLE_EQ(metrics.at("ranks/reduce_bytes"), 1000);
  EXPECT_DOUBLE_EQ(metrics.at("time/split_s"), 0.75);
  EXPECT_DOUBLE_EQ(metrics.at("ranks/split_bytes"), 600);
  EXPECT_DOUBLE_EQ(metrics.at("time/tensor_parallel_s"), 0.875);
  EXPECT_DOUBLE_EQ(metrics.at("ranks/tensor_parallel_bytes"), 800);
  EXPECT_DOUBLE_EQ(metrics.at("time/context_parallel_s"), 0.8125);
  EXPECT_DOUBLE_EQ(metrics.at("ranks/context_parallel_bytes"), 900);
  EXPECT_DOUBLE_EQ(metrics.at("time/gather_s"), 0.125);
  EXPECT_DOUBLE_EQ(metrics.at("ranks/gather_bytes"), 700);
  EXPECT_DOUBLE_EQ(metrics.at("time/slowest_rank_s"), 3.5);
  EXPECT_DOUBLE_EQ(metrics.at("time/fastest_rank_s"), 2.5);
}

TEST(StepMetricsTest, StagesSayWhatTheyHandedToEachOther) {
  EXPECT_FALSE(StepMetrics(MakeVote()).contains("time/pipeline_s"));
  internal::v1::Vote merged = MakeVote();
  merged.mutable_sums()->set_pipeline_s(0.4375);
  merged.mutable_sums()->set_pipeline_bytes(700);
  const Ranks ranks = {.votes = std::vector(2, MakeVote()), .applied = std::vector<internal::v1::Applied>(2)};
  const Metrics metrics = StepMetrics(merged, absl::Seconds(2), MakeHeader(), ranks);
  EXPECT_DOUBLE_EQ(metrics.at("time/pipeline_s"), 0.4375);
  EXPECT_DOUBLE_EQ(metrics.at("ranks/pipeline_bytes"), 700);
}

TEST(StepMetricsTest, ShardedParametersSayWhatTheyTook) {
  EXPECT_FALSE(StepMetrics(MakeVote()).contains("time/parameters_s"));
  internal::v1::Vote merged = MakeVote();
  merged.mutable_sums()->set_parameters_s(0.375);
  merged.mutable_sums()->set_parameters_bytes(1100);
  const Ranks ranks = {.votes = std::vector(2, MakeVote()), .applied = std::vector<internal::v1::Applied>(2)};
  const Metrics metrics = StepMetrics(merged, absl::Seconds(2), MakeHeader(), ranks);
  EXPECT_DOUBLE_EQ(metrics.at("time/parameters_s"), 0.375);
  EXPECT_DOUBLE_EQ(metrics.at("ranks/parameters_bytes"), 1100);
}

TEST(StepMetricsTest, KernelsThatAreOffAreCountedWhereTheyAreChecked) {
  EXPECT_FALSE(StepMetrics(MakeVote()).contains("ranks/kernels_off"));
  for (const size_t off : {0, 3}) {
    const Metrics metrics = StepMetrics(MakeVote(), absl::Seconds(2), MakeHeader(), {.kernels_off = off});
    EXPECT_DOUBLE_EQ(metrics.at("ranks/kernels_off"), static_cast<double>(off));
  }
  v1::UpdateResult result;
  for (const double off : {1, 2, 0}) {
    v1::StepResult& step = *result.add_steps();
    step.set_outcome(v1::StepResult::APPLIED);
    (*step.mutable_metrics())["ranks/kernels_off"] = off;
  }
  Metrics metrics;
  SetRequestMetrics(result, metrics);
  EXPECT_DOUBLE_EQ(metrics.at("ranks/kernels_off"), 2) << "a worker may have been replaced between steps";
}

TEST(StepMetricsTest, NamesAreThoseThatRolloutFrameworksPlot) {
  Metrics metrics = StepMetrics(MakeVote());
  EXPECT_DOUBLE_EQ(metrics.at("actor/pg_loss"), 0.5);
  EXPECT_DOUBLE_EQ(metrics.at("actor/kl_loss"), 2);
  EXPECT_DOUBLE_EQ(metrics.at("actor/kl_coef"), 0.1);
  EXPECT_DOUBLE_EQ(metrics.at("actor/entropy_loss"), 3);
  EXPECT_DOUBLE_EQ(metrics.at("actor/loss"), 0.5 - 0.01 * 3 + 0.1 * 2);
  EXPECT_DOUBLE_EQ(metrics.at("actor/pg_clipfrac"), 0.4);
  EXPECT_DOUBLE_EQ(metrics.at("actor/pg_clipfrac_lower"), 0.1);
  EXPECT_DOUBLE_EQ(metrics.at("actor/ppo_kl"), -0.5);
  EXPECT_DOUBLE_EQ(metrics.at("actor/entropy"), 2);
  EXPECT_DOUBLE_EQ(metrics.at("actor/grad_norm"), 3) << "the square root of the sum, unclipped";
  EXPECT_DOUBLE_EQ(metrics.at("actor/lr"), 1e-6);
  EXPECT_DOUBLE_EQ(metrics.at("prefix/tokens_saved"), 150);
  EXPECT_DOUBLE_EQ(metrics.at("prefix/token_ratio"), 4);
  EXPECT_DOUBLE_EQ(metrics.at("plan/groups_dense"), 1);
  EXPECT_DOUBLE_EQ(metrics.at("plan/groups_empty"), 0);
  EXPECT_DOUBLE_EQ(metrics.at("plan/predicted_bytes"), 5000);
  EXPECT_DOUBLE_EQ(metrics.at("plan/predicted_with_headroom_bytes"), 6000);
  EXPECT_DOUBLE_EQ(metrics.at("plan/measured_bytes"), 4096);
  EXPECT_DOUBLE_EQ(metrics.at("predicted/state_bytes"), 12000);
  EXPECT_DOUBLE_EQ(metrics.at("predicted/suffix_bytes"), 2900) << "the largest cluster";
  EXPECT_DOUBLE_EQ(metrics.at("predicted/prefix_forward_bytes"), 900);
  EXPECT_DOUBLE_EQ(metrics.at("predicted/prefix_backward_bytes"), 0) << "no prefix";
  EXPECT_DOUBLE_EQ(metrics.at("measured/prefix_forward_bytes"), 1000);
  EXPECT_DOUBLE_EQ(metrics.at("measured/suffix_bytes"), 3000);
  EXPECT_DOUBLE_EQ(metrics.at("measured/prefix_backward_bytes"), 2000);
  EXPECT_DOUBLE_EQ(metrics.at("predicted/prefix_forward_s"), 0.125);
  EXPECT_DOUBLE_EQ(metrics.at("predicted/prefix_backward_s"), 0.375);
  EXPECT_DOUBLE_EQ(metrics.at("predicted/host_bytes"), 70);
  EXPECT_DOUBLE_EQ(metrics.at("measured/host_bytes"), 60);
  EXPECT_FALSE(metrics.contains("measured/state_bytes")) << "not measured";
  EXPECT_FALSE(metrics.contains("offload/bytes_out")) << "nothing was offloaded";
  EXPECT_DOUBLE_EQ(metrics.at("predicted/suffix_s"), 1.25);
  EXPECT_DOUBLE_EQ(metrics.at("predicted/apply_s"), 0.5);
  EXPECT_DOUBLE_EQ(metrics.at("time/prefix_forward_s"), 0.75);
  EXPECT_DOUBLE_EQ(metrics.at("time/suffix_s"), 1.5);
  EXPECT_DOUBLE_EQ(metrics.at("time/prefix_backward_s"), 1.25);
  EXPECT_DOUBLE_EQ(metrics.at("time/apply_s"), 0.25);
  EXPECT_DOUBLE_EQ(metrics.at("perf/actor/time_per_step"), 2);
  EXPECT_DOUBLE_EQ(metrics.at("perf/actor/total_num_tokens"), 300);
  EXPECT_DOUBLE_EQ(metrics.at("perf/actor/throughput"), 150);
  EXPECT_DOUBLE_EQ(metrics.at("perf/actor/flops"), 4e12);
  EXPECT_DOUBLE_EQ(metrics.at("perf/actor/flops_dense"), 1e13);
  EXPECT_DOUBLE_EQ(metrics.at("perf/actor/tflops"), 2) << "of what ran, not of what the dense baseline would run";
  for (const char* name : {"perf/throughput", "perf/time_per_step", "perf/total_num_tokens"}) {
    EXPECT_FALSE(metrics.contains(name)) << name << " is a name that verl's trainer gives to the whole RL step";
  }
}

TEST(StepMetricsTest, WhatWasNotComputedIsNotReported) {
  internal::v1::Vote vote = MakeVote();
  vote.mutable_sums()->set_loss_tokens(0);
  v1::UpdateHeader header = MakeHeader();
  header.mutable_loss()->clear_kl_loss_coef();
  Metrics metrics = StepMetrics(vote, absl::ZeroDuration(), header);
  for (const char* name : {"actor/kl_loss", "actor/kl_coef", "actor/entropy", "actor/pg_clipfrac", "actor/ppo_kl",
                           "perf/actor/throughput", "perf/actor/tflops"}) {
    EXPECT_FALSE(metrics.contains(name)) << name;
  }
  EXPECT_DOUBLE_EQ(metrics.at("actor/loss"), 0.5 - 0.01 * 3);
  EXPECT_EQ(metrics.at("actor/token_coverage"), 0);
}

// Without a coefficient rollouts of zero advantage do not run: their entropy is in no sum, but D counts their tokens.
TEST(StepMetricsTest, TheAggregatedEntropyIsReportedWhereEveryTokenRan) {
  v1::UpdateHeader header = MakeHeader();
  header.mutable_loss()->clear_entropy_coeff();
  Metrics metrics = StepMetrics(MakeVote(), absl::Seconds(2), header);
  EXPECT_FALSE(metrics.contains("actor/entropy_loss"));
  EXPECT_DOUBLE_EQ(metrics.at("actor/entropy"), 2) << "of the tokens that ran";
  EXPECT_DOUBLE_EQ(metrics.at("actor/token_coverage"), 0.25);
  EXPECT_DOUBLE_EQ(metrics.at("actor/loss"), 0.5 + 0.1 * 2);
  header.mutable_loss()->set_entropy_coeff(0);
  metrics = StepMetrics(MakeVote(), absl::Seconds(2), header);
  EXPECT_DOUBLE_EQ(metrics.at("actor/entropy_loss"), 3);
}

TEST(StepMetricsTest, WhatWasOffloadedOrMeasuredBetweenStepsIsReportedWhereItWas) {
  internal::v1::Vote vote = MakeVote();
  vote.mutable_sums()->set_state_bytes(11000);
  vote.mutable_sums()->set_offload_out_bytes(7);
  vote.mutable_sums()->set_offload_in_bytes(6);
  vote.mutable_sums()->set_offload_demand_loads(5);
  vote.mutable_sums()->set_offload_waits(4);
  const Metrics metrics = StepMetrics(vote);
  EXPECT_EQ(metrics.at("measured/state_bytes"), 11000);
  EXPECT_EQ(metrics.at("offload/bytes_out"), 7);
  EXPECT_EQ(metrics.at("offload/bytes_in"), 6);
  EXPECT_EQ(metrics.at("offload/demand_loads"), 5);
  EXPECT_EQ(metrics.at("offload/waits"), 4);
}

// Neither its FLOPs nor its rows are among the step's.
TEST(StepMetricsTest, APassForLogProbsIsNoPartOfTheStepsSeconds) {
  internal::v1::Vote vote = MakeVote();
  const Metrics without = StepMetrics(vote, absl::Seconds(2));
  EXPECT_EQ(without.count("time/log_probs_s"), 0);
  vote.mutable_sums()->set_log_probs_s(0.5);
  const Metrics with = StepMetrics(vote, absl::Seconds(2), MakeHeader(), {.votes = {vote}});
  EXPECT_DOUBLE_EQ(with.at("time/log_probs_s"), 0.5);
  EXPECT_DOUBLE_EQ(with.at("perf/actor/time_per_step"), 1.5);
  EXPECT_DOUBLE_EQ(with.at("perf/actor/throughput") * 1.5, without.at("perf/actor/throughput") * 2);
}

// Copies do not meet behind it: what one takes for its pass, another may take for its phases.
TEST(StepMetricsTest, AStepIsNoShorterThanItsSlowestRanksPhases) {
  const auto vote_of = [](double log_probs_s, double suffix_s) {
    internal::v1::Vote vote;
    vote.mutable_sums()->set_log_probs_s(log_probs_s);
    vote.mutable_sums()->set_suffix_s(suffix_s);
    return vote;
  };
  internal::v1::Vote merged = MakeVote();
  merged.mutable_sums()->set_log_probs_s(1);
  const Metrics metrics =
      StepMetrics(merged, absl::Seconds(2.5), MakeHeader(), {.votes = {vote_of(1, 1), vote_of(0.2, 1.6)}});
  EXPECT_DOUBLE_EQ(metrics.at("time/log_probs_s"), 1) << "the longest of any rank";
  EXPECT_DOUBLE_EQ(metrics.at("time/slowest_rank_s"), 1.6);
  EXPECT_DOUBLE_EQ(metrics.at("perf/actor/time_per_step"), 2.1) << "2 s of both, where the phases alone are 1.6";
}

TEST(StepMetricsTest, AnEmptyStepHasTheNamesOfAnyOther) {
  Metrics empty = StepMetrics(internal::v1::Vote());
  const Metrics other = StepMetrics(MakeVote());
  const std::set<std::string> quotients = {"actor/pg_clipfrac", "actor/pg_clipfrac_lower", "actor/ppo_kl",
                                           "actor/entropy", "prefix/token_ratio"};
  for (const auto& [name, value] : other) {
    EXPECT_EQ(empty.contains(name), !quotients.contains(name)) << name << ": nothing by nothing is left out";
  }
  for (const char* name : {"actor/loss", "actor/kl_loss", "actor/token_coverage", "actor/grad_norm",
                           "prefix/tokens_logical", "time/suffix_s", "plan/measured_bytes"}) {
    EXPECT_EQ(empty.at(name), 0) << name;
  }
  EXPECT_DOUBLE_EQ(empty.at("actor/lr"), 1e-6);
}

TEST(StepMetricsTest, SkippedStepsCountOnlyWhereNoneWasApplied) {
  v1::UpdateResult result;
  (*result.add_steps()->mutable_metrics())["actor/loss"] = 0;
  result.mutable_steps(0)->set_outcome(v1::StepResult::SKIPPED_EMPTY);
  Metrics metrics;
  SetRequestMetrics(result, metrics);
  EXPECT_EQ(metrics.at("actor/loss"), 0);
  (*result.add_steps()->mutable_metrics())["actor/loss"] = 3;
  result.mutable_steps(1)->set_outcome(v1::StepResult::APPLIED);
  metrics.clear();
  SetRequestMetrics(result, metrics);
  EXPECT_EQ(metrics.at("actor/loss"), 3);
}

TEST(StepMetricsTest, ThePassForLogProbsIsTheRequestsWhateverItsFirstStepIs) {
  v1::UpdateResult result;
  (*result.add_steps()->mutable_metrics())["time/log_probs_s"] = 2;
  (*result.add_steps()->mutable_metrics())["time/suffix_s"] = 3;
  result.mutable_steps(0)->set_outcome(v1::StepResult::SKIPPED_EMPTY);
  result.mutable_steps(1)->set_outcome(v1::StepResult::APPLIED);
  Metrics metrics;
  SetRequestMetrics(result, metrics);
  EXPECT_EQ(metrics.at("time/log_probs_s"), 2);
  EXPECT_EQ(metrics.at("time/suffix_s"), 3);
}

TEST(StepMetricsTest, ARequestAveragesLossesAndSumsTokensAndSecondsOverItsAppliedSteps) {
  v1::UpdateResult result;
  for (double loss : {1.0, 3.0}) {
    v1::StepResult& step = *result.add_steps();
    step.set_outcome(v1::StepResult::APPLIED);
    auto& metrics = *step.mutable_metrics();
    metrics = StepMetrics(MakeVote());
    metrics["actor/loss"] = loss;
    metrics["plan/measured_bytes"] = loss;
  }
  result.add_steps()->set_outcome(v1::StepResult::SKIPPED_NONFINITE);
  Metrics metrics;
  SetRequestMetrics(result, metrics);
  EXPECT_DOUBLE_EQ(metrics.at("actor/loss"), 2);
  EXPECT_DOUBLE_EQ(metrics.at("plan/measured_bytes"), 3);
  EXPECT_DOUBLE_EQ(metrics.at("prefix/tokens_saved"), 300);
  EXPECT_DOUBLE_EQ(metrics.at("prefix/token_ratio"), 4);
  EXPECT_DOUBLE_EQ(metrics.at("perf/actor/time_per_step"), 4);
  EXPECT_DOUBLE_EQ(metrics.at("predicted/suffix_s"), 2.5);
  EXPECT_DOUBLE_EQ(metrics.at("predicted/state_bytes"), 12000);
  EXPECT_DOUBLE_EQ(metrics.at("predicted/suffix_bytes"), 2900);
  EXPECT_DOUBLE_EQ(metrics.at("perf/actor/throughput"), 150);
  EXPECT_DOUBLE_EQ(metrics.at("perf/actor/flops"), 8e12);
  EXPECT_DOUBLE_EQ(metrics.at("perf/actor/tflops"), 2);
}

}  // namespace
}  // namespace stemma::server
