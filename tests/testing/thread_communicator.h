// Ranks that are threads of one process: how tests run everything above worker/parallel on several ranks.
//
// Thread safety: one thread per rank. Sums are added in the order of the ranks. Stricter than c10d, so that a test
// finds what might hang or abort there: ranks that meet in different calls (kind, name, dtype, size or root) die by
// CHECK with both calls; a Send returns only when its receiver has taken the values; and, as on a device's stream, a
// message waits for those that its sender and its receiver have begun before it.
//
// A rank whose communicator is destroyed has left: what the others still ask of it fails at once, as with a process
// that has died. So does a rank that gave up waiting.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "tests/testing/namespaces.h"
#include "worker/parallel/communicator.h"
#include "worker/parallel/mesh_ranks.h"

namespace stemma::testing {

// One communicator for each rank, in order; each may move to a thread of its own. `timeout`: of one wait.
// `pairs_apart`: as AxisGroup has it.
std::vector<std::unique_ptr<Communicator>> MakeThreadRanks(int size, absl::Duration timeout,
                                                           const std::string& axis = "dp", bool pairs_apart = false);

// The communicators of each rank of a mesh, by its number. `kv_replicas`: ModelShard::kv_replicas().
std::vector<MeshRanks> MakeThreadMesh(const v1::Mesh& mesh, int64_t kv_replicas, absl::Duration timeout);

}  // namespace stemma::testing
