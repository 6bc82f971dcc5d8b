// What an operation takes, in parts: computing, copies to host memory and back, and each axis's wire, of which some
// runs beside its compute. Pure.
#pragma once

#include <cstdint>

#include "server/planner/cost_model.h"
#include "server/simulation/program_run.h"

namespace stemma::server {

struct OperationSeconds {
  double compute_s = 0;
  double copy_s = 0;
  AxisSeconds wire_s = {};    // all of it, by axis
  AxisSeconds hidden_s = {};  // of it, beside compute
  double message_s = 0;       // of its wire over pp, which holds the next operation's rank and not its own
  std::array<double, kNumAxes> sent_bytes = {};

  // Returns what holds the rank after its compute.
  AxisSeconds Exposed() const;
};

OperationSeconds SecondsOf(const Work& work, const Rates& rates);

// Hides what an axis sends layer by layer, each layer's one layer ahead or behind: the first layer's is waited for, and
// of each other one what its neighbour's compute does not last for. `share`: of the axis's seconds, the part that
// travels so.
void HideBesideLayers(Axis axis, double share, int64_t layers, OperationSeconds& seconds);

}  // namespace stemma::server
