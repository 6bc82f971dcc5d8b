#include "common/cost/rank_shape.h"

#include <algorithm>

#include "common/base/mesh.h"
#include "common/base/round_up.h"
#include "common/cost/state_bytes.h"

namespace stemma {

ModelShard LargestShard(const ModelConfig& model, const v1::Mesh& mesh) {
  const int64_t tp = TpSize(mesh);
  return {model, {.tp_rank = tp - 1, .tp_size = tp}, 0, model.num_layers};
}

ByteShape RankShape(const ModelConfig& model, const v1::RunConfig& run) {
  ByteShape shape;
  shape.config = model;
  shape.tp = TpSize(run.mesh());
  shape.cp = CpSize(run.mesh());
  if (shape.tp > 1) {
    shape.config = LargestShard(model, run.mesh()).LocalConfig();
    shape.config.vocab_size = DivideUp(model.vocab_size, shape.tp);
  }
  shape.run_bytes = RunBytes(RunDtypeOf(run.dtype()));
  shape.accumulate_bytes = AccumulateBytes(RunDtypeOf(run.dtype()));
  shape.head_chunk_rows = run.head_chunk_tokens();
  shape.threads = std::max<int64_t>(1, run.threads());
  return shape;
}

}  // namespace stemma
