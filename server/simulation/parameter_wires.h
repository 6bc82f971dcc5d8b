// What the ranks of a stage send each other of sharded parameters in each of its operations: weights that they gather,
// gradients that they hand to their owners. Pure; the simulator's programs count by it.
//
// All ranks that hold the same part of the model make the same visits to its units (common/cost/parameter_units.h), so
// an operation sends the same on each of them, whether a rank computes something in it or not.
#pragma once

#include <vector>

#include "common/cost/byte_shape.h"
#include "common/cost/parameter_units.h"
#include "server/planner/cost_model.h"
#include "server/simulation/operation_seconds.h"
#include "stemma/v1/plan.pb.h"

namespace stemma::server {

// A letter of a stage's order: A, F, B or C, with the sweeps of the place that it is of.
struct SweptOperation {
  char letter = 'A';
  v1::ParameterSweeps sweeps;
};

struct SweptPass {
  std::vector<SweptOperation> operations;  // in the order in which the stage runs them
  bool forward_only = false;
  bool reduces_once = false;  // StepPlan::reduce_gradients_once
};

// Returns what each operation of a stage has on the wire between ranks that share its parameters, and nothing else.
std::vector<OperationSeconds> ParameterWiresOf(const ParameterUnits& units, const ByteShape& stage, const Rates& rates,
                                               const SweptPass& pass);

// Adds to an operation what it has on that wire. A unit travels while the one beside it runs.
void AddParameterWire(const OperationSeconds& wire, int64_t layers, OperationSeconds& seconds);

}  // namespace stemma::server
