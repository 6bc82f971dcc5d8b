#include "server/protocol/totals.h"

namespace stemma::server {
namespace {

using internal::v1::JournalRow;

double Metric(const v1::StepResult& step, const char* name) {
  const auto it = step.metrics().find(name);
  return it == step.metrics().end() ? 0 : it->second;
}

// A number that a later version of the wire could bring is counted as none.
template <typename Counts>
void CountAt(int index, Counts& counts) {
  ++counts[index > 0 && static_cast<size_t>(index) < counts.size() ? static_cast<size_t>(index) : 0];
}

}  // namespace

void Totals::CountStep(const v1::StepResult& step) {
  CountAt(step.outcome(), steps);
  prefix_forward_s += Metric(step, "time/prefix_forward_s");
  suffix_s += Metric(step, "time/suffix_s");
  prefix_backward_s += Metric(step, "time/prefix_backward_s");
  apply_s += Metric(step, "time/apply_s");
  tokens_logical += Metric(step, "prefix/tokens_logical");
  tokens_computed += Metric(step, "prefix/tokens_computed");
  flops += Metric(step, "perf/actor/flops");
  if (step.outcome() == v1::StepResult::APPLIED) last_step = step;
}

void Totals::Count(const JournalRow& row) {
  switch (row.row_case()) {
    case JournalRow::kAccepted:
      ++updates_accepted;
      break;
    case JournalRow::kFinished:
      CountAt(row.finished().state(), updates_ended);
      break;
    case JournalRow::kApplied:
      if (row.applied().has_result()) CountStep(row.applied().result());  // else it was made before
      break;
    case JournalRow::kSkipped:
      for (const v1::StepResult& step : row.skipped().results()) CountStep(step);
      break;
    case JournalRow::kLineageBegun:
      if (row.lineage_begun().has_lost()) ++lineages_lost;
      break;
    case JournalRow::kCheckpointSaved:
      ++checkpoints_saved;
      break;
    default:
      break;
  }
}

}  // namespace stemma::server
