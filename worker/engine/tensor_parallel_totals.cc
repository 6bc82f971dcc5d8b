#include "worker/engine/tensor_parallel_totals.h"

#include <map>
#include <string>

#include "worker/engine/partial_gradients.h"
#include "worker/ops/tensor_parallel.h"

namespace stemma::worker {

CollectiveTotals TensorParallelTotals(const MeshRanks& ranks) {
  CollectiveTotals sums;
  for (const Communicator* axis : {ranks.tp.get(), ranks.kv.get()}) {
    const std::map<std::string, CollectiveTotals> totals = axis->stats().Read();
    for (const char* name : {kRowsName, kRowSumsName, kVocabularyName, kPartialGradientsName}) {
      const auto found = totals.find(name);
      if (found == totals.end()) continue;
      sums.calls += found->second.calls;
      sums.bytes += found->second.bytes;
      sums.seconds += found->second.seconds;
    }
  }
  return sums;
}

}  // namespace stemma::worker
