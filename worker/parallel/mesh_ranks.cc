#include "worker/parallel/mesh_ranks.h"

#include "common/base/status_macros.h"
#include "worker/parallel/local_communicator.h"

namespace stemma::worker {

absl::Status CopyRanks::Agree(std::string_view name, std::span<int64_t> words) const {
  for (Communicator* const axis : {tp, shards == nullptr ? cp : shards, pp}) {
    if (axis != nullptr) RETURN_IF_ERROR(axis->Agree(name, words));
  }
  return absl::OkStatus();
}

absl::Status MeshRanks::Agree(std::string_view name, std::span<int64_t> words) const {
  RETURN_IF_ERROR(tp->Agree(name, words));
  RETURN_IF_ERROR(pp->Agree(name, words));
  return data->Agree(name, words);
}

MeshRanks OnlyRank() {
  return {std::make_unique<LocalCommunicator>("data"), std::make_unique<LocalCommunicator>("cp"),
          std::make_unique<LocalCommunicator>("tp"), std::make_unique<LocalCommunicator>("kv"),
          std::make_unique<LocalCommunicator>("pp")};
}

}  // namespace stemma::worker
