// Has the collectives and copies of one call of the engine recorded, while it lives. Engine thread only.
#pragma once

#include <memory>
#include <utility>

#include "worker/engine/step_spans.h"
#include "worker/memory/copy_engine.h"
#include "worker/parallel/communicator.h"

namespace stemma::worker {

class ObservedCall {
 public:
  // `spans` null: nothing is recorded. The other two outlive it. With one rank there are no collectives.
  ObservedCall(const std::shared_ptr<StepSpans>& spans, Communicator& dp, CopyEngine& copies)
      : dp_(dp), copies_(copies) {
    if (spans == nullptr) return;
    if (dp_.size() > 1) dp_.Observe([spans](const CollectiveRecord& collective) { spans->Add(collective); });
    copies_.Observe([spans](const CopyTimes& copy) { spans->Add(copy); });
    observing_ = true;
  }
  ~ObservedCall() {
    if (!observing_) return;
    dp_.Observe({});
    copies_.Observe({});
  }
  ObservedCall(const ObservedCall&) = delete;
  ObservedCall& operator=(const ObservedCall&) = delete;

 private:
  Communicator& dp_;
  CopyEngine& copies_;
  bool observing_ = false;
};

}  // namespace stemma::worker
