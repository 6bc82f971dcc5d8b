// The bytes of an MLP block with experts at its highest moment, beside its input, the statistics of its norm and what
// is there of attention. Internal to common/cost/*_bytes.cc; the moments follow worker/model/moe_block.cc.
//
// They do not depend on which experts rows choose, but for what is upcast of one expert's rows in a bf16 run: there all
// rows may choose the same one, and that is counted. Where ranks have experts of their own, all rows may choose those
// of one rank: see common/cost/expert_rows.h.
#pragma once

#include <cstdint>

#include "common/cost/tensor_bytes.h"
#include "stemma/v1/plan.pb.h"

namespace stemma {

// Counts rows that a norm makes, while they are gathered from all tensor-parallel ranks.
inline int64_t GatheredNormBytes(const TensorBytes& t) {
  return t.normed + (t.gathered > 0 ? t.input + t.gather_scratch : 0);
}

int64_t MoeForwardBytes(const TensorBytes& t, v1::TapePolicy policy);
// Counts what the tape holds for the block, too, but not the gradient of its output.
int64_t MoeBackwardBytes(const TensorBytes& t, v1::TapePolicy policy);

}  // namespace stemma
