#include "worker/parallel/mesh_ranks.h"

#include "common/base/status_macros.h"
#include "worker/parallel/local_communicator.h"

namespace stemma::worker {

absl::Status MeshRanks::Agree(std::string_view name, std::span<int64_t> words) const {
  RETURN_IF_ERROR(tp->Agree(name, words));
  return dp->Agree(name, words);
}

absl::Status MeshRanks::BroadcastFromFirst(std::string_view name, at::Tensor& values) const {
  // The first copy's ranks have rank 0's values, which then go to the ranks of equal place in the other copies.
  RETURN_IF_ERROR(tp->Broadcast(name, values, /*root=*/0));
  return dp->Broadcast(name, values, /*root=*/0);
}

MeshRanks OnlyRank() {
  return {std::make_unique<LocalCommunicator>("dp"), std::make_unique<LocalCommunicator>("tp"),
          std::make_unique<LocalCommunicator>("kv")};
}

}  // namespace stemma::worker
