#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "glog/logging.h"
#include "worker/parallel/mesh_ranks.h"
#include "worker/parallel/rendezvous.h"
#include "worker/parallel/transport.h"

namespace stemma::worker {

absl::StatusOr<MeshRanks> ConnectMesh(Rendezvous& rendezvous, const v1::Mesh& mesh, uint32_t rank, int64_t kv_replicas,
                                      const Transport& transport) {
  const MeshPlace place = PlaceOf(mesh, rank);
  const auto replicas = static_cast<uint32_t>(kv_replicas);
  CHECK_EQ(TpSize(mesh) % replicas, 0U);
  const auto connect = [&](const std::string& axis, uint32_t own, uint32_t size) {
    return rendezvous.Connect(axis, static_cast<int>(own), static_cast<int>(size), transport);
  };
  MeshRanks ranks;
  const uint32_t data_rank = place.dp_rank * CpSize(mesh) + place.cp_rank;
  ASSIGN_OR_RETURN(ranks.data, connect(absl::StrCat("dp.", place.tp_rank), data_rank, DataRanks(mesh)));
  ASSIGN_OR_RETURN(ranks.cp,
                   connect(absl::StrCat("cp.", place.dp_rank, ".", place.tp_rank), place.cp_rank, CpSize(mesh)));
  ASSIGN_OR_RETURN(ranks.tp, connect(absl::StrCat("tp.", data_rank), place.tp_rank, TpSize(mesh)));
  ASSIGN_OR_RETURN(ranks.kv, connect(absl::StrCat("kv.", data_rank, ".", place.tp_rank / replicas),
                                     place.tp_rank % replicas, replicas));
  return ranks;
}

}  // namespace stemma::worker
