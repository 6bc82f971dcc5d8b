// What each tape policy keeps, in one place: the layers drop and restore by it, the byte formulas count by it
// (performance of each: docs/memory.md). A policy keeps what the next one keeps, and more.
#pragma once

#include "stemma/v1/plan.pb.h"

namespace stemma {

inline bool KeepsElementwise(v1::TapePolicy policy) { return policy <= v1::S0; }  // norms' outputs, silu(gate) · up
inline bool KeepsGateUp(v1::TapePolicy policy) { return policy <= v1::S1; }
inline bool KeepsQueries(v1::TapePolicy policy) { return policy <= v1::S2; }  // and what comes before QK-norm
inline bool KeepsAttention(v1::TapePolicy policy) {
  return policy <= v1::S3;
}  // its output, LSE, the residual after it
inline bool KeepsInputs(v1::TapePolicy policy) { return policy <= v1::S4; }  // of each layer

}  // namespace stemma
