// The communicators of one rank of a mesh, one for each axis. A mesh of one rank has local ones, so callers have one
// path.
//
// Called by worker/engine on the engine thread. All ranks of an axis make the same calls in the same order; what
// concerns the whole mesh goes over its axes one after the other, tp, pp, data, on every rank.
//
// Ranks are numbered in three ways:
//   mesh rank     ((dp · pp_size + pp) · cp_size + cp) · tp_size + tp: what logs, traces and the server say
//   data rank     dp · cp_size + cp: the place in MeshRanks::data
//   program rank  (pp · dp_size + dp) · cp_size + cp: what the exchanges of worker/schedule/program.h name
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

// The ranks that hold one copy of the model together and compute its groups: those of tp, cp and pp. All outlive it;
// null: the axis has one rank.
struct CopyRanks {
  Communicator* tp = nullptr;
  Communicator* cp = nullptr;
  Communicator* pp = nullptr;
  // The ranks that divide this part of the model's parameters, over all copies; null: parameters are whole. They gather
  // them from each other while they compute, and so begin and stop together as those of a copy do.
  Communicator* shards = nullptr;

  int tp_rank() const { return tp == nullptr ? 0 : tp->rank(); }
  int tp_size() const { return tp == nullptr ? 1 : tp->size(); }
  int cp_rank() const { return cp == nullptr ? 0 : cp->rank(); }
  int cp_size() const { return cp == nullptr ? 1 : cp->size(); }
  int pp_rank() const { return pp == nullptr ? 0 : pp->rank(); }
  int pp_size() const { return pp == nullptr ? 1 : pp->size(); }
  bool is_last_stage() const { return pp_rank() == pp_size() - 1; }
  int size() const { return tp_size() * cp_size() * pp_size(); }
  // Tells whether no other rank waits for this one inside of a pass's operations.
  bool alone() const { return size() == 1 && shards == nullptr; }
  // Returns those of this rank's stage.
  CopyRanks stage() const { return {tp, cp, nullptr, shards}; }
  // Returns the mesh rank that has this one's place in copy `dp_rank`.
  int MeshRankInCopy(int dp_rank) const {
    return ((dp_rank * pp_size() + pp_rank()) * cp_size() + cp_rank()) * tp_size() + tp_rank();
  }
  // Returns its data rank.
  int DataRankInCopy(int dp_rank) const { return dp_rank * cp_size() + cp_rank(); }
  // Replaces each word by the largest of all ranks of the copy; where parameters are sharded, of all copies. Errors:
  // Unavailable.
  absl::Status Agree(std::string_view name, std::span<int64_t> words) const;
};

struct MeshRanks {
  // The ranks that hold the same part of the model, dp · cp of them: they share its gradients and optimizer states.
  // Those of one copy are neighbours.
  std::unique_ptr<Communicator> data;
  std::unique_ptr<Communicator> cp;  // those of them that compute the groups of one copy
  std::unique_ptr<Communicator> tp;  // the ranks that hold the parts of one stage's layers
  std::unique_ptr<Communicator> kv;  // neighbours in tp that hold the same K/V heads
  std::unique_ptr<Communicator> pp;  // the stages of one copy: ranks of equal place in tp and cp

  int size() const { return data->size() * pp->size() * tp->size(); }
  // Returns the mesh rank, as PlaceOf() in common/base/mesh.h reads it.
  int mesh_rank() const { return MeshRankOfData(data->rank()); }
  // Returns the mesh rank of the one that holds the same part of the model and has this data rank.
  int MeshRankOfData(int data_rank) const { return MeshRankOf(data_rank, pp->rank()); }
  // Returns the mesh rank of the one of this copy that has this one's place in another stage.
  int MeshRankOfStage(int stage) const { return MeshRankOf(data->rank(), stage); }
  int MeshRankOf(int data_rank, int stage) const {
    const int of_stage = cp->size();
    const int in_stage = (data_rank / of_stage * pp->size() + stage) * of_stage + data_rank % of_stage;
    return in_stage * tp->size() + tp->rank();
  }
  CopyRanks copy() const { return {tp.get(), cp.get(), pp.get()}; }
  // Replaces each word by the largest of all ranks of the mesh. Errors: Unavailable.
  absl::Status Agree(std::string_view name, std::span<int64_t> words) const;
};

// Returns the only rank of a mesh of one.
MeshRanks OnlyRank();

// Connects this rank to the others, axis by axis. `kv_replicas`: ModelShard::kv_replicas(), a divisor of the mesh's tp.
// Errors: Unavailable - ranks have not come in time, or have gone.
absl::StatusOr<MeshRanks> ConnectMesh(Rendezvous& rendezvous, const v1::Mesh& mesh, uint32_t rank, int64_t kv_replicas,
                                      const Transport& transport);

}  // namespace stemma::worker
