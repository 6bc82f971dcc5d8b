// The communicators of one rank of a mesh, one for each axis. A mesh of one rank has local ones, so callers have one
// path.
//
// Called by worker/engine on the engine thread. All ranks of an axis make the same calls in the same order; what
// concerns the whole mesh goes over its axes one after the other, tp before dp, on every rank.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mesh.h"
#include "worker/parallel/communicator.h"

namespace stemma::worker {

class Rendezvous;
class Transport;

struct MeshRanks {
  std::unique_ptr<Communicator> dp;  // the ranks that hold the same part of the model: one of each copy
  std::unique_ptr<Communicator> tp;  // the ranks that hold one copy together
  std::unique_ptr<Communicator> kv;  // neighbours in tp that hold the same K/V heads

  int size() const { return dp->size() * tp->size(); }
  // Returns the rank's number in the mesh, as PlaceOf() in common/base/mesh.h reads it.
  int rank() const { return RankOfCopy(dp->rank()); }
  // Returns the number of the rank that holds the same part of another copy.
  int RankOfCopy(int dp_rank) const { return dp_rank * tp->size() + tp->rank(); }
  // Replaces each word by the largest of all ranks of the mesh. Errors: Unavailable.
  absl::Status Agree(std::string_view name, std::span<int64_t> words) const;
  // Puts the values of the mesh's rank 0 into everyone's. Any dtype. Errors: Unavailable.
  absl::Status BroadcastFromFirst(std::string_view name, at::Tensor& values) const;
};

// Returns the only rank of a mesh of one.
MeshRanks OnlyRank();

// Connects this rank to the others, axis by axis. `kv_replicas`: ModelShard::kv_replicas(), a divisor of the mesh's tp.
// Errors: Unavailable - ranks have not come in time, or have gone.
absl::StatusOr<MeshRanks> ConnectMesh(Rendezvous& rendezvous, const v1::Mesh& mesh, uint32_t rank, int64_t kv_replicas,
                                      const Transport& transport);

}  // namespace stemma::worker
