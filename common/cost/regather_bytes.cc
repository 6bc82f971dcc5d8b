#include "common/cost/regather_bytes.h"

#include "common/cost/context_share.h"
#include "common/cost/shared_kv_bytes.h"

namespace stemma {
namespace {

// Counts what is beside the layers: K/V of all rows, and the next layer's on their way; in backward gK/gV of all rows,
// and those of the layer before on their way. Of the layers below the last the one before it counts, which has most
// tape: in a backward of two layers nothing is left to gather there.
BesideLayer RegatherBeside(const ByteShape& shape, int64_t rows, int64_t part) {
  const KvRows row(shape);
  const int64_t all = rows * row.kv, coming = GatherBytes(shape, part), layers = shape.config.num_layers;
  const int64_t leaving = ReduceBytes(shape, part) + part * row.gradient;
  return {.embedding = coming,
          .forward = all + coming,
          .backward = all + rows * row.gradient + (layers > 2 ? coming : 0) + leaving,
          .forward_last = all,
          .backward_last = all + rows * row.gradient + (layers > 1 ? coming : 0),
          .backward_apart = (layers > 1 ? coming : 0) + leaving,
          .gradients = rows * row.gradient};
}

}  // namespace

BesideLayer RegatherBytes(const ByteShape& shape, const PrefixShape& prefix) {
  if (!prefix.regather || !SharesRows(shape, prefix)) return {};
  return RegatherBeside(shape, prefix.rows, RowsOfRank(shape, prefix).rows);
}

}  // namespace stemma
