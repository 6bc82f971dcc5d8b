// The bytes of one layer at its highest moment. Internal to common/cost/*_bytes.cc.
//
// The moments stand in the order in which worker/model/layer.cc comes to them: each says which tensors of the layer are
// there at the same time, and what does not grow with the rows (scratch of attention, widened operands). Left out: the
// rounding of each tensor to 64 bytes.
#pragma once

#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "common/cost/tensor_bytes.h"
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

// Counts the embedding at its highest moment: 0 with one rank, where the first layer's moments are higher.
int64_t EmbeddingBytes(const TensorBytes& t);

// What a layer holds beside its tensors over own rows where context-parallel ranks share the rows of a prefix, or of a
// rollout.
struct SharedKv {
  // K/V of all ranks' rows, from their gathering to the end of the layer's forward; in backward, counted only while
  // they are gathered.
  int64_t held = 0;
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
