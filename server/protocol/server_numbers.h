// What whoever watches a server reads of it at one moment.
#pragma once

#include <cstdint>

#include "server/protocol/call_counts.h"
#include "server/protocol/refusals.h"
#include "server/protocol/totals.h"
#include "stemma/v1/training.pb.h"

namespace stemma::server {

struct ServerNumbers {
  Totals totals;
  v1::ModelInfo model;
  uint64_t steps_behind = 0;  // that have to be computed again before the weights are the lineage's
  uint64_t workers = 0, ranks = 0;
  uint64_t generations = 0;                     // that began since the server started
  uint64_t jobs_open = 0, jobs_open_bytes = 0;  // being planned too, as limits.requests_in_flight counts them
  uint64_t checkpoints = 0;
  uint64_t newest_checkpoint_step = 0;   // of those that can be loaded; 0: there is none
  uint64_t checkpoint_saves_failed = 0;  // since the server started
  CallCounts calls;                      // that ended, likewise
  RefusalCounts refused = {};            // calls, likewise
};

}  // namespace stemma::server
