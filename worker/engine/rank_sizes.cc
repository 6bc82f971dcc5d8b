#include "worker/engine/rank_sizes.h"

namespace stemma::worker {

RankSizes RankSizesOf(const Weights& weights, const Communicator* data, const CopyRanks& copy, const Payload& payload) {
  RankSizes sizes;
  sizes.cp_rank = copy.cp_rank();
  sizes.cp_ranks = copy.cp_size();
  sizes.stage = copy.pp_rank();
  sizes.stages = copy.pp_size();
  if (data != nullptr) {
    sizes.copy = data->rank() / sizes.cp_ranks;
    sizes.num_copies = data->size() / sizes.cp_ranks;
  }
  const int64_t layer_elements = 2 * weights.config.num_kv_heads * weights.config.head_size;
  const int64_t elements = weights.config.num_layers * layer_elements;
  sizes.kv_row_bytes = elements * static_cast<int64_t>(c10::elementSize(weights.run_dtype));
  sizes.gradient_row_bytes = elements * static_cast<int64_t>(c10::elementSize(weights.accumulate_dtype));
  for (const GroupShape& shape : payload.shapes) sizes.prefix_rows.push_back(shape.prompt_tokens - 1);
  return sizes;
}

}  // namespace stemma::worker
