#include "worker/engine/rank_sizes.h"

namespace stemma::worker {

RankSizes RankSizesOf(const Weights& weights, const Communicator* dp, const Payload& payload) {
  RankSizes sizes;
  if (dp != nullptr) {
    sizes.rank = dp->rank();
    sizes.num_ranks = dp->size();
  }
  const int64_t layer_elements = 2 * weights.config.num_kv_heads * weights.config.head_size;
  const int64_t elements = weights.config.num_layers * layer_elements;
  sizes.kv_row_bytes = elements * static_cast<int64_t>(c10::elementSize(weights.run_dtype));
  sizes.gradient_row_bytes = elements * static_cast<int64_t>(c10::elementSize(weights.accumulate_dtype));
  for (const GroupShape& shape : payload.shapes) sizes.prefix_rows.push_back(shape.prompt_tokens - 1);
  return sizes;
}

}  // namespace stemma::worker
