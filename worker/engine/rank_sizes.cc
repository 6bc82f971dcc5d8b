#include "worker/engine/rank_sizes.h"

namespace stemma::worker {

RankSizes RankSizesOf(const Communicator* data, const CopyRanks& copy, const Payload& payload) {
  RankSizes sizes;
  sizes.cp_rank = copy.cp_rank();
  sizes.cp_ranks = copy.cp_size();
  sizes.stage = copy.pp_rank();
  sizes.stages = copy.pp_size();
  if (data != nullptr) {
    sizes.copy = data->rank() / sizes.cp_ranks;
    sizes.num_copies = data->size() / sizes.cp_ranks;
  }
  for (const GroupShape& shape : payload.shapes) sizes.prefix_rows.push_back(shape.prompt_tokens - 1);
  return sizes;
}

}  // namespace stemma::worker
