// A rank's program: the ordered operations of one step, expanded from the plan, and a checker that runs the programs of
// all ranks against each other without tensors. Pure: called by worker/engine and tests.
//
// The engine interprets a program: it keeps the tapes of waves between their forward and backward, and the hot sets of
// clusters between Phases A and C, in tables by their indices. What a rank does never depends on its clock.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "stemma/v1/plan.pb.h"

namespace stemma::worker {

enum class OperationKind {
  kPrefixForward,   // Phase A of a cluster
  kWaveForward,     // of one wave of Phase B, head and loss included
  kWaveBackward,    // of a wave whose forward ran
  kPrefixBackward,  // Phase C of a cluster
  // Between ranks. No plan makes them yet: one rank computes a step alone.
  kSend,     // exchange.ranks = {from, to}
  kReceive,  // exchange.ranks = {from, to}
  kGather,   // of all exchange.ranks
  kReduce,   // of all exchange.ranks
};

// What crosses ranks: all of them name the same tensor with the same bytes.
struct Exchange {
  std::vector<int> ranks;
  std::string tensor;
  int64_t bytes = 0;

  bool operator==(const Exchange&) const = default;
};

struct Operation {
  OperationKind kind = OperationKind::kPrefixForward;
  int cluster = 0;
  int wave = 0;            // of kWaveForward and kWaveBackward
  Exchange exchange = {};  // of kSend, kReceive, kGather, kReduce
};

using Program = std::vector<Operation>;

// Lists for each cluster: A if it has prefixes, forward and backward of its waves in order, C if it has prefixes. A
// forward-only pass has neither backward nor C.
Program ExpandStep(const v1::StepPlan& step, bool forward_only);

// "WaveForward(cluster 0, wave 2)", "Reduce(\"gk.3\", 4096 bytes, ranks 0 1)".
std::string OperationText(const Operation& operation);

// What a rank holds at once at most.
struct ProgramPeaks {
  int live_waves = 0;     // forward ran, backward did not
  int live_clusters = 0;  // Phase A ran, Phase C did not
};

// Runs the programs of all ranks of a step against each other. Answers each rank's peaks. Errors: InvalidArgument -
//   order: a wave runs before its cluster's Phase A, a backward without its forward's tape, a Phase C before the last
//     backward of its cluster, or an operation twice
//   tapes: a forward whose tape nobody consumes, a Phase A without a Phase C (unless forward_only)
//   exchanges: a rank that is in none of its ranks, ranks that meet with different tensors or bytes, or wait for ever
// and names rank, place and operation.
absl::StatusOr<std::vector<ProgramPeaks>> CheckPrograms(const std::vector<Program>& ranks, bool forward_only);

}  // namespace stemma::worker
