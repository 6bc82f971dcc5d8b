#include "client/cli/output/stage_text.h"

#include "absl/strings/str_cat.h"
#include "common/base/human.h"

namespace stemma::cli {
namespace {

// Calls f(step, rank, stage) for each stage of each copy of each step.
template <typename F>
void ForStages(const v1::PlanReport& plan, const F& f) {
  for (int k = 0; k < plan.steps_size(); ++k) {
    for (int rank = 0; rank < plan.steps(k).ranks_size(); ++rank) {
      for (int stage = 0; stage < plan.steps(k).ranks(rank).stages_size(); ++stage) f(k, rank, stage);
    }
  }
}

}  // namespace

std::string PipelineText(const v1::PlanReport& plan) {
  const v1::RankReport* longest = nullptr;
  ForStages(plan, [&](int k, int rank, int) {
    const v1::RankReport& report = plan.steps(k).ranks(rank);
    if (longest == nullptr || report.pipeline_s() > longest->pipeline_s()) longest = &report;
  });
  if (longest == nullptr) return "";
  return absl::StrCat(longest->stages_size(), " stages, ", HumanSeconds(longest->pipeline_s()),
                      " through them, of which the busiest idles ", HumanSeconds(longest->bubble_s()));
}

std::vector<Record> StageSummaries(const v1::PlanReport& plan) {
  std::vector<Record> records;
  ForStages(plan, [&](int k, int rank, int s) {
    const v1::StageReport& stage = plan.steps(k).ranks(rank).stages(s);
    Record record;
    record["step"] = k;
    record["rank"] = rank;
    record["stage"] = s;
    record["layers"] = stage.layers();
    record["peak"] = HumanBytes(static_cast<double>(stage.peak_bytes()));
    record["time"] = HumanSeconds(stage.seconds());
    record["idle"] = HumanSeconds(stage.idle_s());
    records.push_back(std::move(record));
  });
  return records;
}

std::vector<Column> StageSummaryColumns() {
  return {{"step", "step"}, {"rank", "rank"}, {"stage", "stage"}, {"layers", "layers"},
          {"peak", "peak"}, {"time", "time"}, {"idle", "idle"}};
}

std::vector<Record> StageRecords(const v1::PlanReport& plan) {
  std::vector<Record> records;
  ForStages(plan, [&](int k, int rank, int s) {
    const v1::RankReport& report = plan.steps(k).ranks(rank);
    const v1::StageReport& stage = report.stages(s);
    Record record;
    record["k"] = k;
    record["rank"] = rank;
    record["stage"] = s;
    record["layers"] = stage.layers();
    record["seconds"] = stage.seconds();
    record["idle_s"] = stage.idle_s();
    record["peak_bytes"] = stage.peak_bytes();
    record["host_bytes"] = stage.host_bytes();
    record["pipeline_s"] = report.pipeline_s();
    record["bubble_s"] = report.bubble_s();
    records.push_back(std::move(record));
  });
  return records;
}

}  // namespace stemma::cli
