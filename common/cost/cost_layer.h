// The bytes of one layer at its highest moment. Internal to common/cost/cost_bytes.cc.
//
// The moments stand in the order in which worker/model/layer.cc comes to them: each says which tensors of the layer are
// there at the same time, in bytes per row, and what does not grow with the rows (scratch of attention, widened
// operands). Left out: the rounding of each tensor to 64 bytes.
#pragma once

#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "common/cost/cost.h"
#include "stemma/v1/plan.pb.h"

namespace stemma {

// Spans that attend to one ancestor in one call, or to none; each also to itself.
struct LayerRun {
  int64_t rows = 0;
  int64_t longest_rows = 0;   // of one span
  int64_t ancestor_rows = 0;  // 0: there is none
  int64_t padded_spans = 0;   // more than one: padded to the longest for one call
};

// Rows that one layer works on, and how they attend; of the runs those that may need most.
struct LayerRows {
  int64_t rows = 0;
  absl::InlinedVector<LayerRun, 4> runs = {};
};

// Bytes per row of a layer's tensors. The shape outlives it.
struct RowBytes {
  explicit RowBytes(const ByteShape& byte_shape);

  const ByteShape& shape;
  int64_t input, q, kv, gradient_kv, ffn;
  int64_t statistic;  // of a norm
  int64_t attended;   // the output of attention and its log-sum-exp
  // With QK-norm: what comes before it, kept with its statistics; those alone.
  int64_t qk_norm, qk_statistics, k_norm, k_statistics;

  // Tapes without K and V: of a full layer; of rows of which only K and V are computed.
  int64_t tape(v1::TapePolicy policy) const;
  int64_t kv_only_tape(v1::TapePolicy policy) const;
};

// Its input and own K/V included.
int64_t LayerForwardBytes(const RowBytes& row, const LayerRows& l, v1::TapePolicy policy);

// Counts what a layer holds when it ends and its V is copied into a buffer that several blocks share: K, copied before,
// is a part of such a buffer already. The buffers are not counted.
int64_t LayerCopyBytes(const RowBytes& row, int64_t rows, v1::TapePolicy policy);

// Whose rows they are: those of a wave hold their K/V themselves. A prefix's K/V and the gradients that others
// accumulated on them are counted apart; the latter are added to its own.
enum class KvOwner { kWave, kPrefix };

// Its tape and the gradient of its output included.
int64_t LayerBackwardBytes(const RowBytes& row, const LayerRows& l, v1::TapePolicy policy, KvOwner owner);

// The same of rows of which only K and V are computed. Their gradients are not counted, and K/V as `owner` says.
int64_t KvOnlyForwardBytes(const RowBytes& row, int64_t rows);
int64_t KvOnlyCopyBytes(const RowBytes& row, int64_t rows, v1::TapePolicy policy);
int64_t KvOnlyBackwardBytes(const RowBytes& row, int64_t rows, v1::TapePolicy policy, KvOwner owner);

}  // namespace stemma
