// Has the collectives, of all axes, and the copies of one call of the engine recorded, while it lives. Engine thread
// only.
#pragma once

#include <memory>

#include "worker/engine/step_spans.h"
#include "worker/memory/copy_engine.h"
#include "worker/parallel/mesh_ranks.h"

namespace stemma::worker {

class ObservedCall {
 public:
  // `spans` null: nothing is recorded. The other two outlive it. With one rank there are no collectives.
  ObservedCall(const std::shared_ptr<StepSpans>& spans, const MeshRanks& ranks, CopyEngine& copy_engine)
      : ranks_(ranks), copy_engine_(copy_engine) {
    if (spans == nullptr) return;
    observing_ = true;
    // A peer is told by its rank in the mesh; over cp, tp and kv none is named.
    ObserveRanks([spans, &ranks](CollectiveRecord collective) {
      if (collective.peer >= 0) collective.peer = ranks.MeshRankOfData(collective.peer);
      spans->Add(collective);
    });
    if (ranks.pp->size() > 1) {
      ranks.pp->Observe([spans, &ranks](CollectiveRecord collective) {
        if (collective.peer >= 0) collective.peer = ranks.MeshRankOfStage(collective.peer);
        spans->Add(collective);
      });
    }
    copy_engine_.Observe([spans](const CopyTimes& copy) { spans->Add(copy); });
  }
  ~ObservedCall() {
    if (!observing_) return;
    ObserveRanks({});
    ranks_.pp->Observe({});
    copy_engine_.Observe({});
  }
  ObservedCall(const ObservedCall&) = delete;
  ObservedCall& operator=(const ObservedCall&) = delete;

 private:
  void ObserveRanks(const CollectiveObserver& observer) const {
    for (Communicator* axis : {ranks_.data.get(), ranks_.cp.get(), ranks_.tp.get(), ranks_.kv.get()}) {
      if (axis->size() > 1) axis->Observe(observer);
    }
  }

  const MeshRanks& ranks_;
  CopyEngine& copy_engine_;
  bool observing_ = false;
};

}  // namespace stemma::worker
