// A tensor- or context-parallel rank that plays alone, for tests of bytes: peaks are a process's, so that the other
// ranks must not be in it. What it is given of the others is its own, so its values are wrong; the memory that it
// takes, and what it counts as sent, are those of a rank among others.
#pragma once

#include "tests/testing/namespaces.h"
#include "worker/parallel/mesh_ranks.h"

namespace stemma::testing {

// A rank of the mesh's first copy. -1 of tp: the last one, which has no fewer tokens of the vocabulary than another.
// Its collectives take the scratch that those of worker/parallel/c10d_communicator.h take over Gloo. `kv_replicas`:
// ModelShard::kv_replicas().
worker::MeshRanks MakeLoneRank(const v1::Mesh& mesh, int64_t kv_replicas, int cp_rank = 0, int pp_rank = 0,
                               int tp_rank = -1);

}  // namespace stemma::testing
