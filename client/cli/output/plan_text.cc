#include "client/cli/output/plan_text.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/cli/output/answer_fields.h"
#include "client/cli/output/stage_text.h"
#include "common/base/human.h"
#include "common/cost/plan_seconds.h"

namespace stemma::cli {
namespace {

double Number(uint64_t number) { return static_cast<double>(number); }

// " (2.50x less)"; nothing where the two are the same, or nothing runs.
std::string Less(double all, double computed) {
  return computed > 0 && all > computed ? absl::StrCat(" (", HumanRatio(all / computed), " less)") : "";
}

std::string RequestText(const v1::PlanReport& plan) {
  std::string text = absl::StrCat(Counted(Number(plan.num_steps()), "step"), ", ",
                                  Counted(Number(plan.num_groups()), "group"), " (", plan.groups_reuse(), " by reuse, ",
                                  plan.groups_dense(), " dense), ", Counted(Number(plan.num_rollouts()), "rollout"));
  if (const uint32_t idle = plan.num_rollouts() - plan.rollouts_run(); idle > 0) {
    absl::StrAppend(&text, " (", idle, " with nothing to compute)");
  }
  return absl::StrCat(text, ", ", Counted(Number(plan.num_waves()), "wave"));
}

std::string TimeText(const v1::PlanReport& plan) {
  const v1::PhaseSeconds& seconds = plan.seconds();
  // Stages run side by side, so that phases add up to more than all takes.
  const bool staged = plan.pipeline_s() > 0;
  const bool several = std::any_of(plan.steps().begin(), plan.steps().end(),
                                   [](const v1::StepReport& step) { return step.ranks_size() > 1; });
  const char* of = staged ? "; of all stages together:" : several ? "; of each phase's slowest rank:" : ":";
  const std::string parameters =
      plan.parameters_s() > 0 ? absl::StrCat(", gathering parameters ", HumanSeconds(plan.parameters_s())) : "";
  return absl::StrCat(HumanSeconds(PlanSeconds(plan)), of, " prefixes forward ", HumanSeconds(seconds.prefix_forward()),
                      ", suffixes ", HumanSeconds(seconds.suffix()), ", prefixes backward ",
                      HumanSeconds(seconds.prefix_backward()), ", optimizer ", HumanSeconds(seconds.apply()),
                      parameters,
                      plan.rates().calibrated() ? "" : " (a guess: too few steps were measured on this machine)");
}

// Describes the worst of all steps: by how much the slowest rank is above the mean, and above what any placement of
// whole groups needs.
std::string RanksText(const v1::PlanReport& plan) {
  int ranks = 0, split = 0;
  double imbalance = 0, over_bound = 0, whole = 0;
  uint64_t bytes = 0;
  for (const v1::StepReport& step : plan.steps()) {
    ranks = std::max(ranks, step.ranks_size());
    imbalance = std::max(imbalance, step.imbalance());
    over_bound = std::max(over_bound, step.over_bound());
    whole = std::max(whole, step.imbalance_whole());
    split += step.split_groups_size();
    for (const v1::SplitGroup& group : step.split_groups()) bytes += group.bytes();
  }
  if (ranks < 2) return "";
  std::string text = absl::StrCat(ranks, ": the slowest takes ", HumanRatio(imbalance), " the mean's time, ",
                                  absl::StrFormat("at most %.1f%%", 100 * over_bound), " over the least that ");
  if (split == 0) return absl::StrCat(text, "whole groups allow");
  return absl::StrCat(text, "this split allows; ", Counted(static_cast<double>(split), "group"),
                      " split: ", HumanRatio(whole), " without, ", HumanBytes(Number(bytes)), " between ranks");
}

// "0: 12, 3: 8", the rollouts of each rank, the owner first.
std::string PartsText(const v1::SplitGroup& group) {
  std::vector<std::string> parts;
  for (int i = 0; i < std::min(group.ranks_size(), group.rollouts_size()); ++i) {
    parts.push_back(absl::StrCat(group.ranks(i), ": ", group.rollouts(i)));
  }
  return absl::StrJoin(parts, ", ");
}

uint64_t PeakBytes(const v1::ClusterReport& cluster) {
  return std::max({cluster.prefix_forward().peak(), cluster.suffix().peak(), cluster.prefix_backward().peak()});
}

}  // namespace

std::string PrefixWay(const v1::ClusterReport& cluster) {
  if (cluster.prefix_policy() == v1::TAPE_POLICY_UNSPECIFIED) return "-";
  std::string text = v1::TapePolicy_Name(cluster.prefix_policy());
  if (cluster.prefix_block_rows() > 0) absl::StrAppend(&text, " in blocks of ", cluster.prefix_block_rows());
  if (cluster.offload_prefix()) absl::StrAppend(&text, ", offloaded");
  return text;
}

// Says the least, and where copies of an offloaded tape may use more, that too.
std::string ActivationsText(const v1::PlanReport& plan) {
  std::string least = HumanBytes(Number(plan.peak_bytes()));
  if (plan.peak_bytes_with_headroom() <= plan.peak_bytes()) return least;
  return absl::StrCat(least, " (at most ", HumanBytes(Number(plan.peak_bytes_with_headroom())), " with headroom)");
}

// Says what runs before the first step, and what it reads.
std::string PassesText(const v1::PlanReport& plan) {
  const uint32_t passes = plan.log_prob_passes();
  std::string before = passes == 0   ? ""
                       : passes == 1 ? "one pass before the first step"
                                     : absl::StrCat(passes, " passes before the first step");
  if (plan.checkpoint_weights_bytes() == 0) return before;
  return absl::StrCat(before, before.empty() ? "" : ", ", "beside ",
                      HumanBytes(Number(plan.checkpoint_weights_bytes())), " of a checkpoint's weights");
}

Record PlanSummary(const v1::PlanReport& plan) {
  const auto logical = Number(plan.tokens_logical()), computed = Number(plan.tokens_computed());
  const uint64_t device = plan.state().device();
  Record record;
  record["request"] = RequestText(plan);
  record["tokens"] = absl::StrCat(HumanCount(computed), " of ", HumanCount(logical), Less(logical, computed));
  record["work"] = absl::StrCat(HumanFlops(plan.flops()), " of ", HumanFlops(plan.flops_dense()),
                                Less(plan.flops_dense(), plan.flops()));
  record["time"] = TimeText(plan);
  record["memory"] = absl::StrCat("activations ", ActivationsText(plan), " and state ", HumanBytes(Number(device)),
                                  " of ", HumanBytes(Number(plan.budget_bytes())));
  if (plan.log_prob_passes() > 0 || plan.checkpoint_weights_bytes() > 0) {
    record["log-probs"] = PassesText(plan);
  }
  if (plan.state().host() > 0) {
    record["host memory"] = absl::StrCat("state ", HumanBytes(Number(plan.state().host())));
  }
  if (std::string ranks = RanksText(plan); !ranks.empty()) record["ranks"] = std::move(ranks);
  if (std::string stages = PipelineText(plan); !stages.empty()) record["pipeline"] = std::move(stages);
  return record;
}

std::vector<Record> ClusterSummaries(const v1::PlanReport& plan) {
  std::vector<Record> records;
  for (int k = 0; k < plan.steps_size(); ++k) {
    for (const v1::ClusterReport& cluster : plan.steps(k).clusters()) {
      Record record;
      record["step"] = k;
      record["groups"] = cluster.reuse_uids_size() + cluster.dense_uids_size();
      record["waves"] = absl::StrJoin(cluster.wave_sizes(), "+");
      record["prefix"] = PrefixWay(cluster);
      record["suffix"] =
          cluster.suffix_policy() == v1::TAPE_POLICY_UNSPECIFIED ? "-" : v1::TapePolicy_Name(cluster.suffix_policy());
      record["peak"] = HumanBytes(Number(PeakBytes(cluster)));
      record["time"] = HumanSeconds(TotalSeconds(cluster.seconds()));
      record["reason"] = cluster.reason();
      records.push_back(std::move(record));
    }
  }
  return records;
}

std::vector<Column> ClusterSummaryColumns() {
  return {{"step", "step"},
          {"groups", "groups"},
          {"waves", "rollouts of waves", 5, true},
          {"prefix", "prefix keeps", 6, true},
          {"suffix", "suffixes keep", 8, true},
          {"peak", "peak"},
          {"time", "time"},
          {"reason", "why", 3, true}};
}

std::vector<Record> RankSummaries(const v1::PlanReport& plan) {
  std::vector<Record> records;
  for (int k = 0; k < plan.steps_size(); ++k) {
    for (int rank = 0; rank < plan.steps(k).ranks_size(); ++rank) {
      const v1::RankReport& report = plan.steps(k).ranks(rank);
      Record record;
      record["step"] = k;
      record["rank"] = rank;
      record["groups"] = report.groups();
      record["tokens"] = HumanCount(Number(report.tokens_computed()));
      record["peak"] = HumanBytes(Number(report.peak_bytes()));
      record["time"] = HumanSeconds(report.pipeline_s() > 0 ? report.pipeline_s() : TotalSeconds(report.seconds()));
      record["exchange"] = HumanSeconds(report.exchange_s());
      records.push_back(std::move(record));
    }
  }
  return records;
}

std::vector<Column> RankSummaryColumns(const v1::PlanReport& plan) {
  std::vector<Column> columns = {{"step", "step"},     {"rank", "rank"}, {"groups", "groups"},
                                 {"tokens", "tokens"}, {"peak", "peak"}, {"time", "time"}};
  for (const v1::StepReport& step : plan.steps()) {
    if (step.split_groups().empty()) continue;
    columns.push_back({"exchange", "sends, waits"});
    break;
  }
  return columns;
}

std::vector<Record> SplitSummaries(const v1::PlanReport& plan) {
  std::vector<Record> records;
  for (int k = 0; k < plan.steps_size(); ++k) {
    for (const v1::SplitGroup& group : plan.steps(k).split_groups()) {
      Record record;
      record["step"] = k;
      record["uid"] = group.uid();
      record["owner"] = group.ranks_size() > 0 ? Record(group.ranks(0)) : Record();
      record["rollouts"] = PartsText(group);
      record["bytes"] = HumanBytes(Number(group.bytes()));
      record["sending"] = HumanSeconds(group.seconds());
      records.push_back(std::move(record));
    }
  }
  return records;
}

std::vector<Column> SplitSummaryColumns() {
  return {{"step", "step"},   {"uid", "split group", 11, true},
          {"owner", "owner"}, {"rollouts", "rank: rollouts", 14, true},
          {"bytes", "sent"},  {"sending", "sending"}};
}

}  // namespace stemma::cli
