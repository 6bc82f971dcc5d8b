#include "common/model/stage_layers.h"

#include <algorithm>

#include "common/base/round_up.h"
#include "glog/logging.h"

namespace stemma {
namespace {

// Weights that a row is multiplied with.
double LayerWeights(const ModelConfig& c) {
  const auto heads = static_cast<double>((2 * c.num_heads + 2 * c.num_kv_heads) * c.head_size);
  const double ffn = c.mlps_per_token() * static_cast<double>(c.ffn_size);
  const double router = c.experts ? static_cast<double>(c.experts->count) : 0;
  return static_cast<double>(c.hidden_size) * (heads + 3 * ffn + router);
}
double HeadWeights(const ModelConfig& c) {
  return static_cast<double>(c.hidden_size) * static_cast<double>(c.vocab_size);
}

}  // namespace

std::vector<int64_t> StageBegins(const ModelConfig& config, int64_t stages) {
  const int64_t layers = config.num_layers;
  CHECK(stages >= 1 && stages <= layers) << stages << " stages of " << layers << " layers";
  if (stages == 1) return {0, layers};
  const double layer = LayerWeights(config), head = HeadWeights(config);
  const auto most = [&](int64_t of_last) {
    return std::max(static_cast<double>(DivideUp(layers - of_last, stages - 1)) * layer,
                    static_cast<double>(of_last) * layer + head);
  };
  int64_t of_last = layers / stages;
  for (int64_t fewer = of_last - 1; fewer >= 1; --fewer) {
    if (most(fewer) < most(of_last)) of_last = fewer;
  }
  const int64_t others = stages - 1, fewest = (layers - of_last) / others;
  const int64_t with_fewest = others - (layers - of_last) % others;
  std::vector<int64_t> begins = {0};
  for (int64_t stage = 0; stage < others; ++stage)
    begins.push_back(begins.back() + fewest + (stage < with_fewest ? 0 : 1));
  begins.push_back(layers);
  return begins;
}

}  // namespace stemma
