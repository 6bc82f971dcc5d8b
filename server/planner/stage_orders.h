// In which order the pipeline stages of one copy of the model run a step's operations, and when. Pure; used where a
// step's clusters are known (server/planner/stage_plan.h).
//
// Every stage runs two sequences, both in the order of the clusters: forward, Phase A of a cluster and then its rounds
// of waves; backward, its rounds again and then Phase C. An input comes from the neighbour that ran the same operation
// before: forward from the stage above, backward from the stage below, and on the last stage a round's backward follows
// its forward. A list scheduler interleaves them: a stage that is free runs the backward that is ready, else the
// forward that is ready and allowed. There is no barrier between phases or clusters: a stage goes on with whatever
// came.
//
// A cluster of a group that copies of the model share stands alone: it begins on a stage when all before it have ended
// there, and those after it begin when it has ended. Its exchanges with the other copies then come in one order on all
// stages of all copies, so nobody waits in a circle.
//
// Stage s of S has at most S - s rounds between their forward and their backward (1F1B); where a few more make the step
// shorter, on every stage so many more.
//
// Invariants:
//  (1) orders are complete and can be run: every operation starts when its inputs are there, in the order of times.
//  (2) no operation begins that would pass a budget, nor one after which what is in flight could not run its
//      backward; but one that is alone with its own cluster's prefixes begins always. REQUIRES: it fits then. Messages
//      are not looked at: the budget leaves room for them.
//  (3) the same question has the same answer, bit for bit.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace stemma::server {

// What runs forward and backward on each stage is a cluster's prefixes (Phases A and C), or a round of its waves. This
// is what one of them costs on one stage. Its bytes are its own: what others keep meanwhile adds to them.
struct StageCost {
  double forward_s = 0, backward_s = 0;
  int64_t forward_bytes = 0, backward_bytes = 0;  // at its highest moment in either
  int64_t kept_bytes = 0;                         // from the end of its forward to the begin of its backward
  int64_t output_bytes = 0;                       // of those of prefixes, until their cluster's first backward begins
  int64_t host_bytes = 0;  // of host memory, from the begin of its forward to the end of its backward
  // What it hands to the stage before, in a pass without backward to the next one: so many messages of so many bytes.
  // The two newest of a stage are there beside everything, until others follow.
  int64_t messages = 0, message_bytes = 0;
};
using StageCosts = std::vector<StageCost>;  // of each stage

struct StageCluster {
  StageCosts prefixes;             // empty: it has none, and neither Phase A nor C
  std::vector<StageCosts> rounds;  // not empty
  bool stands_alone = false;       // its group is shared
};

struct StageQuestion {
  size_t stages = 1;
  std::vector<StageCluster> clusters;
  int64_t budget_bytes = std::numeric_limits<int64_t>::max();  // of the device, on each stage
  int64_t host_budget_bytes = std::numeric_limits<int64_t>::max();
};

struct StageOperation {
  char letter = 'A';  // A, F (forward of a round), B (its backward), C
  double begin_s = 0, end_s = 0;
};

// What one stage does.
struct StageRun {
  std::vector<StageOperation> operations;
  double busy_s = 0, idle_s = 0;                // until the step's end, together
  int64_t peak_bytes = 0, host_peak_bytes = 0;  // messages included

  std::string Letters() const;
};

// How a stage that is free chooses.
struct StageRule {
  size_t more_rounds = 0;      // that it may have between forward and backward, beyond S - s
  bool forward_first = false;  // of two operations that are ready
};

struct StageOrders {
  std::vector<StageRun> stages;
  double end_s = 0;
  StageRule rule;        // by which they were found
  bool limited = false;  // a round waited because others were between their forward and their backward
};

// Returns the orders that end first of those that are found by either choice and by any number of rounds in flight; of
// equal ones those that run backwards first, then those of fewest rounds in flight.
StageOrders OrderStages(const StageQuestion& question);

StageOrders OrderStagesWith(const StageQuestion& question, const StageRule& rule);

// Returns what a pass without backward does: every stage runs the forward sequence, and of each cluster keeps what its
// prefixes do until the next one. Backwards are left out of the question.
StageOrders OrderForwards(const StageQuestion& question);

// Returns seconds before which no order ends: on each stage, its work, what it waits for its first round, and what
// others do after its last one. Of S equal stages and rounds it is
//   work of a stage + (S - 1) · (max(a, f) + max(b, c)),
// where a is Phase A of the first cluster, f the forward of its first round, b the backward of the last cluster's last
// round and c its Phase C; without prefixes a and c are 0.
double LeastStageSeconds(const StageQuestion& question);

}  // namespace stemma::server
