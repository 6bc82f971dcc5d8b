#include "common/base/status_macros.h"
#include "worker/parallel/axis_groups.h"
#include "worker/parallel/mesh_ranks.h"
#include "worker/parallel/rendezvous.h"
#include "worker/parallel/transport.h"

namespace stemma::worker {

absl::StatusOr<MeshRanks> ConnectMesh(Rendezvous& rendezvous, const v1::Mesh& mesh, uint32_t rank, int64_t kv_replicas,
                                      const Transport& transport) {
  MeshRanks ranks;
  for (const AxisGroup& group : GroupsOf(mesh, PlaceOf(mesh, rank), static_cast<uint32_t>(kv_replicas))) {
    ASSIGN_OR_RETURN(ranks.*group.communicator,
                     rendezvous.Connect(group.name, static_cast<int>(group.rank), static_cast<int>(group.size),
                                        transport, group.pairs_apart));
  }
  return ranks;
}

}  // namespace stemma::worker
