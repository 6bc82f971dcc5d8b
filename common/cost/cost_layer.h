// The bytes of one layer at its highest moment. Internal to common/cost/*_bytes.cc.
//
// The moments stand in the order in which worker/model/layer.cc comes to them: each says which tensors of the layer are
// there at the same time, and what does not grow with the rows (scratch of attention, widened operands). Left out: the
// rounding of each tensor to 64 bytes.
#pragma once

#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "common/cost/cost.h"
#include "stemma/v1/plan.pb.h"

namespace stemma {

inline constexpr int64_t kIndexBytes = 16;  // token and position of a row of a phase

// Spans that attend to one ancestor in one call, or to none; each also to itself.
struct LayerRun {
  int64_t rows = 0;
  int64_t longest_rows = 0;   // of one span
  int64_t ancestor_rows = 0;  // 0: there is none
  int64_t padded_spans = 0;   // more than one: padded to the longest for one call
};

// How the rows that one layer works on attend; of the runs those that may need most.
using LayerRuns = absl::InlinedVector<LayerRun, 4>;

// Bytes of a layer's tensors over so many rows. A tensor-parallel rank has some rows of what is between the blocks,
// which is as wide as the model, and all rows of its heads and columns: worker/ops/tensor_parallel.h. The shape
// outlives it.
struct TensorBytes {
  TensorBytes(const ByteShape& byte_shape, int64_t num_rows);
  // `row_parts`: of what is cut by rows over tensor-parallel ranks, the rows of one; for sums over several blocks.
  TensorBytes(const ByteShape& byte_shape, int64_t num_rows, int64_t row_parts);

  const ByteShape& shape;
  int64_t rows;
  int64_t input;      // of the layer; its output, and what is as large: the rank's own rows
  int64_t statistic;  // of a norm of own rows
  int64_t normed;     // rows of all ranks, as blocks read them, padded
  int64_t product;    // of the width of the model: all rows, of which the rank has a part of the sum
  int64_t q, kv, gradient_kv, ffn;
  int64_t attended;  // the output of attention and its log-sum-exp
  // With QK-norm: what comes before it, kept with its statistics; those alone.
  int64_t qk_norm, qk_statistics, k_norm, k_statistics;
  // What ranks exchange; 0 where there is one: rows of all ranks that a gather makes of own ones, and its scratch; a
  // sum of products, padded, and its scratch.
  int64_t gathered, gather_scratch, sums;

  // Tapes without K and V: of a full layer; of rows of which only K and V are computed.
  int64_t tape(v1::TapePolicy policy) const;
  int64_t kv_only_tape(v1::TapePolicy policy) const;
};

// Counts the embedding at its highest moment: 0 with one rank, where the first layer's moments are higher.
int64_t EmbeddingBytes(const TensorBytes& t);

// What a layer holds beside its tensors over own rows where context-parallel ranks share the rows of a prefix, or of a
// rollout.
struct SharedKv {
  int64_t held = 0;       // from the gathering of K and V to the layer's end; in backward, of that with which it begins
  int64_t gathering = 0;  // while K and V travel
  int64_t gathered = 0;   // in backward: until gK and gV travel
  int64_t reducing = 0;   // while gK and gV travel, after attention's backward
  int64_t reduced = 0;    // of those, until they are added to the layer's own
};

// Its input and own K/V included.
int64_t LayerForwardBytes(const TensorBytes& t, const LayerRuns& runs, v1::TapePolicy policy,
                          const SharedKv& shared = {});

// Counts what a layer holds when it ends and its V is copied into a buffer that several blocks share: K, copied before,
// is a part of such a buffer already. The buffers are not counted.
int64_t LayerCopyBytes(const TensorBytes& t, v1::TapePolicy policy);

// Whose rows they are: those of a wave hold their K/V themselves. A prefix's K/V and the gradients that others
// accumulated on them are counted apart; the latter are added to its own. Of rows that ranks share, of a prefix or of a
// rollout, a rank has its own K/V beside those of all that it holds for attention, where there is attention.
enum class KvOwner { kWave, kPrefix, kShared };

// Its tape and the gradient of its output included.
int64_t LayerBackwardBytes(const TensorBytes& t, const LayerRuns& runs, v1::TapePolicy policy, KvOwner owner,
                           const SharedKv& shared = {});

// The same of rows of which only K and V are computed. Their gradients are not counted, and K/V as `owner` says. K and
// V travel when what `policy` drops is gone.
int64_t KvOnlyForwardBytes(const TensorBytes& t, v1::TapePolicy policy = v1::S0, const SharedKv& shared = {});
int64_t KvOnlyCopyBytes(const TensorBytes& t, v1::TapePolicy policy);
int64_t KvOnlyBackwardBytes(const TensorBytes& t, v1::TapePolicy policy, KvOwner owner, const SharedKv& shared = {});

}  // namespace stemma
