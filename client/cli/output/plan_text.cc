#include "client/cli/output/plan_text.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/human.h"

namespace stemma::cli {
namespace {

double Number(uint64_t number) { return static_cast<double>(number); }

std::string Counted(uint64_t count, const char* what) { return absl::StrCat(count, " ", what, count == 1 ? "" : "s"); }

// " (2.50x less)"; nothing where the two are the same, or nothing runs.
std::string Less(double all, double computed) {
  return computed > 0 && all > computed ? absl::StrCat(" (", HumanRatio(all / computed), " less)") : "";
}

double Total(const v1::PhaseSeconds& seconds) {
  return seconds.prefix_forward() + seconds.suffix() + seconds.prefix_backward() + seconds.apply();
}

std::string RequestText(const v1::PlanReport& plan) {
  std::string text = absl::StrCat(Counted(plan.num_steps(), "step"), ", ", Counted(plan.num_groups(), "group"), " (",
                                  plan.groups_reuse(), " by reuse, ", plan.groups_dense(), " dense), ",
                                  Counted(plan.num_rollouts(), "rollout"));
  if (const uint32_t idle = plan.num_rollouts() - plan.rollouts_run(); idle > 0) {
    absl::StrAppend(&text, " (", idle, " with nothing to compute)");
  }
  return absl::StrCat(text, ", ", Counted(plan.num_waves(), "wave"));
}

std::string TimeText(const v1::PlanReport& plan) {
  const v1::PhaseSeconds& seconds = plan.seconds();
  return absl::StrCat(HumanSeconds(Total(seconds)), ": prefixes forward ", HumanSeconds(seconds.prefix_forward()),
                      ", suffixes ", HumanSeconds(seconds.suffix()), ", prefixes backward ",
                      HumanSeconds(seconds.prefix_backward()), ", optimizer ", HumanSeconds(seconds.apply()),
                      plan.rates().calibrated() ? "" : " (a guess: too few steps were measured on this machine)");
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
  if (plan.state().host() > 0) {
    record["host memory"] = absl::StrCat("state ", HumanBytes(Number(plan.state().host())));
  }
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
      record["time"] = HumanSeconds(Total(cluster.seconds()));
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

}  // namespace stemma::cli
