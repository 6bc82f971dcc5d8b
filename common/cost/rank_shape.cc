#include "common/cost/rank_shape.h"

#include <algorithm>

#include "common/base/mesh.h"
#include "common/base/round_up.h"
#include "common/cost/state_bytes.h"
#include "common/cost/state_shards.h"
#include "common/model/stage_layers.h"

namespace stemma {

std::vector<ModelShard> StageShards(const ModelConfig& model, const v1::Mesh& mesh) {
  const int64_t tp = TpSize(mesh), pp = PpSize(mesh);
  // A server that has no model yet asks for the bytes of none.
  const std::vector<int64_t> begins = pp > 1 ? StageBegins(model, pp) : std::vector<int64_t>{0, model.num_layers};
  std::vector<ModelShard> shards;
  for (int64_t s = 0; s < pp; ++s) {
    const auto at = static_cast<size_t>(s);
    const ShardPlace place = {.tp_rank = tp - 1, .tp_size = tp, .pp_rank = s, .pp_size = pp, .ep_size = EpSize(mesh)};
    shards.push_back({model, place, begins[at], begins[at + 1]});
  }
  return shards;
}

ModelShard LargestShard(const ModelConfig& model, const v1::Mesh& mesh) {
  const std::vector<ModelShard> shards = StageShards(model, mesh);
  const auto fewer = [](const ModelShard& a, const ModelShard& b) { return NumParameters(a) < NumParameters(b); };
  return *std::max_element(shards.begin(), shards.end(), fewer);
}

int64_t HeadChunkRows(const v1::RunConfig& run) {
  return run.head_chunk_tokens() > 0 ? run.head_chunk_tokens() : kHeadChunkRows;
}

ByteShape RankShape(const ModelConfig& model, const v1::RunConfig& run) {
  ByteShape shape;
  shape.config = model;
  shape.tp = TpSize(run.mesh());
  shape.cp = CpSize(run.mesh());
  if (shape.tp > 1) {
    const ModelShard all_layers = {model,
                                   {.tp_rank = shape.tp - 1, .tp_size = shape.tp, .ep_size = EpSize(run.mesh())},
                                   /*layer_begin=*/0,
                                   /*layer_end=*/model.num_layers};
    shape.config = all_layers.LocalConfig();
    shape.config.vocab_size = DivideUp(model.vocab_size, shape.tp);
  }
  shape.run_bytes = RunBytes(RunDtypeOf(run.dtype()));
  shape.accumulate_bytes = AccumulateBytes(RunDtypeOf(run.dtype()));
  shape.head_chunk_rows = HeadChunkRows(run);
  shape.threads = std::max<int64_t>(1, run.threads());
  return shape;
}

std::vector<ByteShape> StageShapes(const ModelConfig& model, const v1::RunConfig& run) {
  const ByteShape all = RankShape(model, run);
  const std::vector<int64_t> begins = StageBegins(model, PpSize(run.mesh()));
  std::vector<ByteShape> shapes(begins.size() - 1, all);
  for (size_t s = 0; s < shapes.size(); ++s) {
    shapes[s].config.num_layers = begins[s + 1] - begins[s];
    shapes[s].first_stage = s == 0;
    shapes[s].last_stage = s + 1 == shapes.size();
  }
  return shapes;
}

}  // namespace stemma
