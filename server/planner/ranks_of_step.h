// What the ranks of a step are found to do while the planner packs it, and when they end. Pure; filled by
// server/planner/planner.cc alone. With pipeline stages a rank is a copy of the model.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "server/planner/group_split.h"
#include "server/planner/memory_options.h"
#include "server/planner/split_cost.h"
#include "server/planner/stage_timeline.h"
#include "stemma/v1/plan.pb.h"

namespace stemma::server {

struct RanksOfStep {
  // `prefix_rows`: of each group that is split.
  RanksOfStep(const SplitPlacement& placement, const std::vector<int64_t>& prefix_rows, const MemoryOptions& memory)
      : reports(placement.whole.size()),
        work(placement.whole.size()),
        whole(placement.whole.size()),
        shared(placement.shared) {
    if (memory.stages.empty() || shared.empty()) return;
    pipelines.resize(placement.whole.size());
    for (CopyPipeline& pipeline : pipelines) pipeline.parts.resize(shared.size());
    for (size_t i = 0; i < shared.size(); ++i) {
      StageExchange& exchange = exchanges.emplace_back();
      exchange.copies = shared[i].ranks;
      exchange.returns = shared[i].returns;
      for (const ByteShape& stage : memory.stages) {
        const PartSeconds seconds = PartSecondsOf(memory, stage, prefix_rows[i]);
        exchange.send_s.push_back(seconds.send_s);
        exchange.return_s.push_back(seconds.return_s);
      }
    }
  }

  Timeline Run() const {
    if (pipelines.empty()) return RunTimeline(shared, whole);
    Timeline timeline = {.finish_s = RunCopies(pipelines, exchanges), .exchange_s = {}};
    for (size_t rank = 0; rank < pipelines.size(); ++rank) {
      timeline.exchange_s.push_back(std::max(timeline.finish_s[rank] - pipelines[rank].orders.end_s, 0.0));
    }
    return timeline;
  }

  std::vector<v1::RankReport> reports;
  std::vector<PhaseWork> work;
  WholeWork whole;
  std::vector<SharedGroup> shared;
  // None but of copies of several stages that share groups.
  std::vector<CopyPipeline> pipelines;
  std::vector<StageExchange> exchanges;
};

}  // namespace stemma::server
