// What each data-parallel rank is given of a step that was made for all: its clusters and their groups, the weights of
// its rollouts, its groups of the payload. Where several ranks hold one copy of the model together (tp, cp), each of
// them is given what is its copy's: the rank here is the copy, MeshPlace::dp_rank of common/base/mesh.h. Pure. Each
// function deals to all ranks in one walk over the plan, because a plan holds up to millions of rollouts; with one rank
// it gives everything as it is. Used by the coordinator, and by tests that run the engine without one.
//
// A group runs on one rank of a step, and a split one on several: each of those is dealt the whole group, the weights
// of all its rollouts too, because its plan's waves name rollouts by their place in it. Groups in which nothing runs
// are rank 0's.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "common/base/mesh.h"
#include "glog/logging.h"
#include "stemma/internal/v1/worker.pb.h"
#include "stemma/v1/plan.pb.h"

namespace stemma::server {

// Returns the step's part of each rank, with its groups in the step's order. REQUIRES: every cluster's dp_rank is below
// num_ranks.
std::vector<v1::StepPlan> PlansOfRanks(v1::StepPlan step, uint32_t num_ranks);

// Returns for each rank the groups, of so many of the request, that it computes in any step of the plan or in its entry
// pass, ascending: what it is sent of the payload.
std::vector<std::vector<uint32_t>> PayloadGroupsOfRanks(const v1::Plan& plan, uint32_t num_groups, uint32_t num_ranks);

// Returns what each rank is sent of `whole`: its part of the step and of the entry pass, and the weights of its groups'
// rollouts. D stays the mini-batch's, and the key is to be made each rank's own. `num_rollouts`: of each group of the
// request.
std::vector<internal::v1::Prepare> PreparesOfRanks(internal::v1::Prepare whole, uint32_t num_ranks,
                                                   const std::vector<int64_t>& num_rollouts);

// Returns what each rank of the mesh is given of what each of its copies is: the same to all ranks of a copy. Messages
// are large: only those of several ranks are copied.
template <typename T>
std::vector<T> ForRanks(std::vector<T> of_copies, const v1::Mesh& mesh) {
  CHECK_EQ(of_copies.size(), DpSize(mesh));
  const uint32_t ranks_of_copy = RanksOfCopy(mesh);
  if (ranks_of_copy == 1) return of_copies;
  std::vector<T> of_ranks;
  for (T& of_copy : of_copies) {
    of_ranks.insert(of_ranks.end(), ranks_of_copy - 1, of_copy);
    of_ranks.push_back(std::move(of_copy));
  }
  return of_ranks;
}

}  // namespace stemma::server
