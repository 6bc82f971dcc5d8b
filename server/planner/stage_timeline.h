// When copies of the model that have pipeline stages end a step in which they share groups: the stages of each copy run
// their orders, and where copies share a group, ranks of the same stage wait for each other. Pure.
//
// The owner of a group sends a stage's K and V to one helper after the other when the stage has run Phase A, and takes
// gK and gV before Phase C; a helper waits for them where its own order has the group's A, and has its gradients taken
// where it has C (server/planner/split_timeline.h says the same of copies with one stage). Both ranks are busy until an
// exchange ends. Shared groups stand alone (StageCluster), so nobody waits in a circle.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "server/planner/stage_orders.h"

namespace stemma::server {

// What one copy's stages run. Without clusters it ends at once.
struct CopyPipeline {
  StageQuestion question;
  StageOrders orders;
  std::vector<std::optional<size_t>> parts;  // by shared group, the copy's cluster of it
};

// A group that copies share.
struct StageExchange {
  std::vector<int32_t> copies;           // the owner first, then the helpers, ascending
  std::vector<double> send_s, return_s;  // of each stage: K and V to one helper, and its gK and gV back
  bool returns = true;                   // in a pass without backward nothing comes back
};

// Returns when each copy ends. `shared`: in the order in which all copies have them.
std::vector<double> RunCopies(std::span<const CopyPipeline> copies, std::span<const StageExchange> shared);

}  // namespace stemma::server
