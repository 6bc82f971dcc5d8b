#include "server/protocol/totals.h"

#include <algorithm>
#include <string>

#include "common/base/request_state.h"

namespace stemma::server {
namespace {

using internal::v1::JournalRow;
using internal::v1::JournalState;
using internal::v1::KnownRequest;

double Metric(const v1::StepResult& step, const char* name) {
  const auto it = step.metrics().find(name);
  return it == step.metrics().end() ? 0 : it->second;
}

// Counts a value of an enum; one that is not known counts as none.
template <typename Counts>
void CountAt(int index, Counts& counts) {
  const auto at = static_cast<size_t>(index);  // beyond all that are known where it is negative
  ++counts[at < counts.size() ? at : 0];
}

// Returns how many results of the open request are known.
uint32_t NumResults(const JournalState& state, const std::string& request_id) {
  const auto& requests = state.requests();
  const auto found = std::find_if(requests.rbegin(), requests.rend(),
                                  [&](const KnownRequest& request) { return request.request_id() == request_id; });
  return found == requests.rend() ? 0 : static_cast<uint32_t>(found->result().steps_size());
}

uint64_t NumOpen(const JournalState& state) {
  return static_cast<uint64_t>(
      std::count_if(state.requests().begin(), state.requests().end(),
                    [](const KnownRequest& request) { return !IsFinal(request.status().state()); }));
}

}  // namespace

void Totals::CountStep(const v1::StepResult& step, bool known) {
  if (known && step.outcome() != v1::StepResult::APPLIED) return;
  CountAt(step.outcome(), steps);
  if (step.outcome() != v1::StepResult::APPLIED) return;  // one without a gradient may have run for its log-probs
  prefix_forward_s += Metric(step, "time/prefix_forward_s");
  suffix_s += Metric(step, "time/suffix_s");
  prefix_backward_s += Metric(step, "time/prefix_backward_s");
  apply_s += Metric(step, "time/apply_s");
  tokens_logical += Metric(step, "prefix/tokens_logical");
  tokens_computed += Metric(step, "prefix/tokens_computed");
  flops += Metric(step, "perf/actor/flops");
  last_step = step;
}

void Totals::Count(const JournalRow& row, const JournalState& before) {
  switch (row.row_case()) {
    case JournalRow::kAccepted:
      ++updates_accepted;
      break;
    case JournalRow::kFinished:
      CountAt(row.finished().state(), updates_ended);
      break;
    case JournalRow::kApplied:
      if (!row.applied().has_result()) break;  // it was made before
      CountStep(row.applied().result(), row.applied().k() < NumResults(before, row.applied().request_id()));
      break;
    case JournalRow::kSkipped: {
      const uint32_t known = NumResults(before, row.skipped().request_id());
      for (int i = 0; i < row.skipped().results_size(); ++i) {
        CountStep(row.skipped().results(i), row.skipped().k() + static_cast<uint32_t>(i) < known);
      }
      break;
    }
    case JournalRow::kLineageBegun:
      if (!row.lineage_begun().has_lost()) break;
      ++lineages_lost;
      updates_ended[v1::ROLLED_BACK] += NumOpen(before);  // none of them survives
      break;
    case JournalRow::kCheckpointSaved:
      ++checkpoints_saved;
      break;
    default:
      break;
  }
}

}  // namespace stemma::server
