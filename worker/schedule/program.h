// A rank's program: the ordered operations of one step, expanded from the plan. Pure: called by worker/engine and
// tests, which run the programs of all ranks against each other (tests/testing/program_check.h).
//
// The engine interprets a program: it keeps the tapes of waves between their forward and backward, and the hot sets of
// clusters between Phases A and C, in tables by their indices. What a rank does never depends on its clock.
#pragma once

#include <cstdint>
#include <vector>

#include "stemma/v1/plan.pb.h"
#include "worker/schedule/operation.h"

namespace stemma::worker {

// Where a rank stands among those that hold the model and share groups, and the sizes of what they exchange. `copy` is
// the number of its copy of the model, a plan's dp_rank. Exchanges and messages name program ranks, (stage · num_copies
// + copy) · cp_ranks + cp_rank: those that hold the same part of the model are next to one another, and of them those
// of a copy. Tensor-parallel ranks run the same program, so these numbers have no tp (worker/parallel/mesh_ranks.h
// lists all numberings).
struct RankSizes {
  int copy = 0, num_copies = 1;
  int cp_rank = 0, cp_ranks = 1;          // that share the copy's clusters
  int stage = 0, stages = 1;              // of the copy's pipeline
  int64_t kv_row_bytes = 0;               // of one row's K and V in all layers
  int64_t gradient_row_bytes = 0;         // of one row's gK and gV in all layers
  std::vector<int64_t> prefix_rows = {};  // by group of the payload; -1: another rank has it

  // Returns the program rank that has this one's place in another copy.
  int ProgramRankInCopy(int other) const { return ProgramRankOf(stage, other, cp_rank); }
  // Returns the program rank of this copy that has this one's place in another stage.
  int ProgramRankInStage(int other) const { return ProgramRankOf(other, copy, cp_rank); }
  int ProgramRankOf(int of_stage, int of_copy, int of_cp) const {
    return (of_stage * num_copies + of_copy) * cp_ranks + of_cp;
  }
};

// Lists for each cluster: A if it has prefixes, forward and backward of its waves in order, C if it has prefixes. A
// forward-only pass has neither backward nor C. Around the waves of a split group:
//
//   owner    A   Send K/V to each helper        waves   Receive gK/gV of each helper, helpers ascending   C
//   helper       Receive K/V from the owner     waves   Send gK/gV to the owner
//
// Context-parallel ranks run A and C together, and each the waves that are its own; those whose rows are cut are
// everybody's, and come first. Where K/V are gathered again they run their first waves side by side, then their second
// ones, and so on: a rank without a wave in such a round joins in.
//
// A stage of a pipeline runs A and forwards in the order of the clusters, backwards and C likewise, and the two
// interleaved as the plan says (CopyStages of stemma/v1/plan.proto); waves are counted in rounds there, the i-th waves
// of all context-parallel ranks. Each operation receives what the stage before, or the next one, has made of it. What
// is not in the plan's order is left out: CheckStageOrders (worker/schedule/stage_orders.h) refuses such a plan.
//
// Where parameters are sharded, all copies walk the same sweeps in each place of their cluster lists
// (ParameterSweeps): a rank that has less to run there joins in what others run. The checks of
// worker/schedule/parameter_sweeps.h refuse a plan that has more to run than its sweeps say.
//
// Ranks that list their split groups in one order never wait for each other in a circle: stages run such a cluster by
// itself, which CheckStageOrders sees to. An exchange with a rank that there is not, or with itself, is left out:
// CheckSplitGroups (worker/schedule/split_groups.h) refuses such a plan.
Program ExpandStep(const v1::StepPlan& step, bool forward_only, const RankSizes& sizes = {});

// Lists the same cluster by cluster, whatever the plan says of stages' orders, and if it says nothing or what cannot be
// run: a pass that does not begin walks its exchanges so, as the copies that wait for them come to them.
Program ExpandInTurn(const v1::StepPlan& step, bool forward_only, RankSizes sizes);

// No more of a cluster's sweeps of one kind are run: CheckParameterSweeps refuses such a plan.
inline constexpr uint32_t kSweepsMax = 1 << 20;

}  // namespace stemma::worker
