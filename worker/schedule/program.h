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
  // The exchanges of a wave that another context-parallel rank runs, where this one has none in the round.
  kJoinForward,
  kJoinBackward,
  // Between ranks. A plan makes the first two, for groups that are split over ranks.
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

// What a kSend or kReceive carries of the prefix of a split group.
enum class PrefixPart {
  kNone,       // nothing of it
  kKv,         // K/V of all layers, from the owner to a helper, whose hot set they become
  kGradients,  // gK/gV of all layers, from a helper, whose hot set ends, to the owner, who adds them to its own
};

struct Operation {
  OperationKind kind = OperationKind::kPrefixForward;
  int cluster = 0;
  int wave = 0;  // of kWaveForward and kWaveBackward; of kJoinForward and kJoinBackward the round
  // What kSend, kReceive, kGather and kReduce carry; and of an operation that context-parallel ranks run together, with
  // exchanges inside of its layers, who they are, and which operation of theirs it is.
  Exchange exchange = {};
  PrefixPart part = PrefixPart::kNone;

  // Returns the other rank of a kSend or kReceive.
  int peer() const { return exchange.ranks[kind == OperationKind::kSend ? 1 : 0]; }
};

using Program = std::vector<Operation>;

// What a rank knows of the groups that it shares with others. `rank` is the one of its copy of the model, as a plan
// names it; an exchange names the ranks that hold the same part of the model, those of a copy next to one another.
struct RankSizes {
  int rank = 0, num_ranks = 1;
  int cp_rank = 0, cp_ranks = 1;     // that share the copy's clusters
  int64_t kv_row_bytes = 0;          // of one row's K and V in all layers
  int64_t gradient_row_bytes = 0;    // of one row's gK and gV in all layers
  std::vector<int64_t> prefix_rows;  // by group of the payload; beyond its end: 0

  // Returns the rank that has this one's place in copy `copy`.
  int RankInCopy(int copy) const { return copy * cp_ranks + cp_rank; }
};

// Lists for each cluster: A if it has prefixes, forward and backward of its waves in order, C if it has prefixes. A
// forward-only pass has neither backward nor C. Around the waves of a split group:
//
//   owner    A   Send K/V to each helper        waves   Receive gK/gV of each helper, helpers ascending   C
//   helper       Receive K/V from the owner     waves   Send gK/gV to the owner
//
// Context-parallel ranks run A and C together, and each the waves that are its own. Where K/V are gathered again they
// run their first waves side by side, then their second ones, and so on: a rank without a wave in such a round joins
// in.
//
// Ranks that list their split groups in one order never wait for each other in a circle. An exchange with a rank that
// there is not, or with itself, is left out: CheckSplitGroups (worker/schedule/split_groups.h) refuses such a plan.
Program ExpandStep(const v1::StepPlan& step, bool forward_only, const RankSizes& sizes = {});

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
//   split groups: a helper that runs Phase A or C of its cluster, K/V that are sent before they are there, gK/gV that
//   are
//     sent before the last backward, twice or never, or that come after Phase C
//   exchanges: a rank that is in none of its ranks, ranks that meet with different tensors or bytes, or wait for ever
//   together: context-parallel ranks that meet in different operations
// and names rank, place and operation. `ranks`: by the numbers that exchanges name.
absl::StatusOr<std::vector<ProgramPeaks>> CheckPrograms(const std::vector<Program>& ranks, bool forward_only);

}  // namespace stemma::worker
