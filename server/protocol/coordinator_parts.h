// The parts of the coordinator's state that the classes which act on events share. Each owns what it is about and keeps
// its own invariants; they live in CoordinatorState, and outlive whatever holds this.
#pragma once

#include "server/protocol/arrivals.h"
#include "server/protocol/base_keeper.h"
#include "server/protocol/calibration_keeper.h"
#include "server/protocol/checkpoint_save.h"
#include "server/protocol/coordinator_options.h"
#include "server/protocol/gang.h"
#include "server/protocol/history.h"
#include "server/protocol/jobs.h"
#include "server/protocol/lineage.h"
#include "server/protocol/outbox.h"

namespace stemma::server {

struct CoordinatorParts {
  const CoordinatorOptions& options;
  Outbox& out;
  History& history;
  Lineage& lineage;
  BaseKeeper& base;
  CheckpointSave& save;
  Gang& gang;
  CalibrationKeeper& calibration;
  Arrivals& arrivals;
  Jobs& jobs;
};

}  // namespace stemma::server
