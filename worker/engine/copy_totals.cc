#include "worker/engine/copy_totals.h"

#include <initializer_list>
#include <map>
#include <string>

#include "worker/engine/copy_agreement.h"
#include "worker/engine/entry_log_probs.h"
#include "worker/engine/partial_gradients.h"
#include "worker/model/context_exchange.h"
#include "worker/model/sharded_units.h"
#include "worker/model/stage_links.h"
#include "worker/ops/tensor_parallel.h"

namespace stemma::worker {
namespace {

void AddTotals(const Communicator& axis, std::initializer_list<const char*> names, CollectiveTotals& sums) {
  const std::map<std::string, CollectiveTotals> totals = axis.stats().Read();
  for (const char* name : names) {
    const auto found = totals.find(name);
    if (found == totals.end()) continue;
    sums.calls += found->second.calls;
    sums.bytes += found->second.bytes;
    sums.sent += found->second.sent;
    sums.seconds += found->second.seconds;
  }
}

}  // namespace

CopyTotals ReadCopyTotals(const MeshRanks& ranks) {
  CopyTotals totals;
  for (const Communicator* axis : {ranks.tp.get(), ranks.kv.get()}) {
    AddTotals(*axis, {kRowsName, kRowSumsName, kVocabularyName, kPartialGradientsName}, totals.tensor_parallel);
  }
  AddTotals(*ranks.cp,
            {kPrefixKvName, kPrefixGradientsName, kCutKvName, kCutGradientsName, kCutLogProbsName, kEntryLogProbsName},
            totals.context_parallel);
  AddTotals(*ranks.data, {kUnitName, kUnitGradientsName}, totals.parameters);
  AddTotals(*ranks.pp, {kHiddenName, kHiddenGradientsName, kWordName, kPartialGradientsName}, totals.pipeline);
  CollectiveTotals waiting;
  AddTotals(*ranks.cp, {kWavesEndedName}, waiting);
  totals.context_parallel.seconds += waiting.seconds;
  return totals;
}

void SetExchanged(const CopyTotals& before, const CopyTotals& after, internal::v1::StepSums& sums) {
  sums.set_tensor_parallel_s(after.tensor_parallel.seconds - before.tensor_parallel.seconds);
  sums.set_tensor_parallel_bytes(static_cast<uint64_t>(after.tensor_parallel.bytes - before.tensor_parallel.bytes));
  sums.set_context_parallel_s(after.context_parallel.seconds - before.context_parallel.seconds);
  sums.set_context_parallel_bytes(static_cast<uint64_t>(after.context_parallel.bytes - before.context_parallel.bytes));
  sums.set_pipeline_s(after.pipeline.seconds - before.pipeline.seconds);
  sums.set_parameters_s(after.parameters.seconds - before.parameters.seconds);
  sums.set_parameters_bytes(static_cast<uint64_t>(after.parameters.bytes - before.parameters.bytes));
  sums.set_pipeline_bytes(static_cast<uint64_t>(after.pipeline.sent - before.pipeline.sent));
}

}  // namespace stemma::worker
