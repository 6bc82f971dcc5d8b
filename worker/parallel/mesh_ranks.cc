#include "worker/parallel/mesh_ranks.h"

#include "common/base/status_macros.h"
#include "worker/parallel/local_communicator.h"

namespace stemma::worker {

absl::Status MeshRanks::Agree(std::string_view name, std::span<int64_t> words) const {
  RETURN_IF_ERROR(tp->Agree(name, words));
  return dp->Agree(name, words);
}

MeshRanks OnlyRank() {
  return {std::make_unique<LocalCommunicator>("dp"), std::make_unique<LocalCommunicator>("tp"),
          std::make_unique<LocalCommunicator>("kv")};
}

}  // namespace stemma::worker
